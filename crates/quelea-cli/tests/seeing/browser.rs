//! Drives headless Chromium through chromedriver (W3C WebDriver).

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::{has, request, wait};

/// A browser with one window; closed when dropped.
pub struct Browser {
    driver: Child,
    address: String,
    session: String,
}

/// Starts chromedriver at a port that it chooses and says. Nothing, if it ends before.
#[allow(
    clippy::zombie_processes,
    reason = "a browser ends the one that it gets when it is dropped"
)]
fn start_driver() -> Option<(Child, BufReader<ChildStdout>, String)> {
    let mut command = Command::new("chromedriver");
    command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut driver = command.spawn().expect("chromedriver is here");
    let mut lines = BufReader::new(driver.stdout.take().expect("piped"));
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).expect("text") == 0 {
            let _ = driver.wait();
            return None;
        }
        if let Some((_, port)) = line.split_once("started successfully on port ") {
            let port = port.trim().trim_end_matches('.').to_string();
            return Some((driver, lines, port));
        }
    }
}

impl Browser {
    /// Starts one that reaches nothing but this machine; nothing, with a sentence, where it is not
    /// installed.
    pub fn start() -> Option<Browser> {
        if !has("chromium") || !has("chromedriver") {
            println!(
                "skipped: chromium and chromedriver are not here (packages chromium, chromium-driver)"
            );
            return None;
        }
        // One of several that start at once may find its port taken, and ends.
        let started = (0..5).find_map(|_| start_driver());
        let (driver, mut lines, port) = started.expect("chromedriver ends when it starts");
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let mut browser =
            Browser { driver, address: format!("127.0.0.1:{port}"), session: String::new() };
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1280,1000",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let made = browser.post("/session", &wanted);
        browser.session = made["sessionId"].as_str().expect("a session").to_string();
        Some(browser)
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let headers = [("Content-Type", "application/json")];
        let answer = request(&self.address, "POST", path, &headers, &body.to_string());
        let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
        let value = answer["value"].clone();
        assert!(value["error"].is_null(), "{path}: {value}");
        value
    }

    fn in_session(&self, path: &str, body: &Value) -> Value {
        self.post(&format!("/session/{}{path}", self.session), body)
    }

    /// Opens a page.
    pub fn open(&self, url: &str) {
        self.in_session("/url", &json!({ "url": url }));
    }

    /// Looks inside the first page that the present one shows within itself.
    pub fn enter_frame(&self) {
        self.in_session("/frame", &json!({ "id": 0 }));
    }

    /// Presses a key, as a person would.
    pub fn press(&self, key: &str) {
        let events =
            json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": events });
        self.in_session("/actions", &json!({ "actions": [keyboard] }));
    }

    /// Presses the first element that fits, with the mouse, as a person would.
    pub fn click(&self, selector: &str) {
        let found =
            self.in_session("/element", &json!({ "using": "css selector", "value": selector }));
        let id = found.as_object().and_then(|found| found.values().next()?.as_str());
        let id = id.unwrap_or_else(|| panic!("{selector}: {found}"));
        self.in_session(&format!("/element/{id}/click"), &json!({}));
    }

    /// Answers the question that the page asks.
    pub fn answer(&self, is_yes: bool) {
        let word = if is_yes { "accept" } else { "dismiss" };
        self.in_session(&format!("/alert/{word}"), &json!({}));
    }

    /// What a script returns.
    pub fn script(&self, script: &str) -> Value {
        self.in_session("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until a script returns something true.
    pub fn wait_for(&self, script: &str) -> Value {
        let is_true = |value: &Value| !value.is_null() && *value != false && *value != "";
        wait(script, || Some(self.script(script)).filter(is_true))
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        self.in_session("/goog/cdp/execute", &body)
    }

    /// Shows the page in a window of this width.
    pub fn set_width(&self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Shows the page light or dark.
    pub fn set_scheme(&self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", &features);
    }

    /// Errors of the console since the last call.
    pub fn console_errors(&self) -> Vec<String> {
        let log = self.in_session("/se/log", &json!({ "type": "browser" }));
        let entries = log.as_array().cloned().unwrap_or_default();
        let severe = entries.iter().filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].to_string()).collect()
    }

    /// A picture of the page, as PNG.
    pub fn screenshot(&self) -> Vec<u8> {
        let taken = self.devtools("Page.captureScreenshot", &json!({}));
        decode_base64(taken["data"].as_str().expect("text"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let path = format!("/session/{}", self.session);
        if !std::thread::panicking() {
            let _ = request(&self.address, "DELETE", &path, &[], "");
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn decode_base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|c| *c != b'=').map(digit).collect();
    let bytes = digits.chunks(4).flat_map(|chunk| {
        let word = chunk.iter().fold(0u32, |word, d| word << 6 | u32::from(*d));
        let word = word << (6 * (4 - chunk.len()));
        word.to_be_bytes()[1..chunk.len()].to_vec()
    });
    bytes.collect()
}
