//! Progress of a run in the status of its TrainJob (Kubeflow Trainer's KEP-2779): the first process of the run sends
//! it to the server that the controller names. A run never waits for that server and never fails with it.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use quelea_record::{Record, RecordKind};
use quelea_run::files::directory::utc;
use serde_json::{Value, json};
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// The least time between two reports, as the controller asks.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long one report may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where a TrainJob's progress is sent: what the controller puts into the environment of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusServer {
    url: String,
    /// A file with the certificate that the server's is checked against.
    certificate: Option<PathBuf>,
    /// A file with the token, which the cluster renews.
    token: PathBuf,
}

impl StatusServer {
    /// What the environment says, if this is a pod of a TrainJob whose controller wants to know.
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> Option<StatusServer> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        Some(StatusServer {
            url: given("KUBEFLOW_TRAINER_SERVER_URL")?,
            certificate: given("KUBEFLOW_TRAINER_SERVER_CA_CERT").map(PathBuf::from),
            token: PathBuf::from(given("KUBEFLOW_TRAINER_SERVER_TOKEN")?),
        })
    }

    fn agent(&self) -> Result<Agent, String> {
        let mut tls = TlsConfig::builder();
        if let Some(path) = &self.certificate {
            let failed = |problem: String| format!("{}: {problem}", path.display());
            let pem = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
            let mut roots = Vec::new();
            for item in parse_pem(&pem) {
                if let PemItem::Certificate(one) =
                    item.map_err(|error| failed(error.to_string()))?
                {
                    roots.push(one);
                }
            }
            if roots.is_empty() {
                return Err(failed("holds no certificate".to_string()));
            }
            tls = tls.root_certs(RootCerts::new_with_certs(&roots));
        }
        let config = Agent::config_builder().timeout_global(Some(PATIENCE)).tls_config(tls.build());
        Ok(config.build().into())
    }

    /// The token and the certificate are read each time: the cluster renews both.
    fn send(&self, status: &Value) -> Result<(), String> {
        let token = std::fs::read_to_string(&self.token);
        let token = token.map_err(|error| format!("{}: {error}", self.token.display()))?;
        let request = self.agent()?.post(&self.url).content_type("application/json");
        let request = request.header("Authorization", format!("Bearer {}", token.trim()));
        let sent = request.send(status.to_string());
        sent.map(drop).map_err(|error| format!("{}: {error}", self.url))
    }
}

/// How far a run is.
#[derive(Clone, Debug)]
struct RunProgress {
    total: u64,
    done: u64,
    /// Those that were done before, by another process.
    before: u64,
    /// When the first step was done.
    began: Option<Instant>,
    loss: Option<f64>,
    evaluated: Option<f64>,
    accuracy: Option<f64>,
    has_ended: bool,
}

impl RunProgress {
    fn take(&mut self, record: &Record) {
        match &record.event {
            RecordKind::Step { loss, .. } => {
                self.began.get_or_insert_with(Instant::now);
                self.done += 1;
                // Mini-batches are noisy: about the mean of the last fifty.
                let loss = f64::from(*loss);
                self.loss = Some(self.loss.map_or(loss, |smooth| smooth + 0.02 * (loss - smooth)));
            }
            RecordKind::Evaluation { loss, accuracy, .. } => {
                (self.evaluated, self.accuracy) = (Some(*loss), *accuracy);
            }
            _ => {}
        }
    }

    /// An `UpdateTrainJobStatusRequest`.
    fn status(&self, now: SystemTime) -> Value {
        let percent = self.done.saturating_mul(100).checked_div(self.total).unwrap_or(0);
        // What is left besides steps is not over before the run has ended.
        let percent = if self.has_ended { 100 } else { percent.min(99) };
        let named = [
            ("loss", self.loss),
            ("eval_loss", self.evaluated),
            ("eval_accuracy", self.accuracy),
            ("steps", Some(self.done as f64)),
        ];
        let known = named.into_iter().filter_map(|(name, value)| {
            let value = value.filter(|value| value.is_finite())?;
            Some(json!({ "name": name, "value": value.to_string() }))
        });
        let mut status = json!({
            "progressPercentage": percent,
            "metrics": known.collect::<Vec<Value>>(),
            "lastUpdatedTime": utc(now),
        });
        if let Some(seconds) = self.remaining_seconds() {
            status["estimatedRemainingSeconds"] = json!(seconds);
        }
        json!({ "trainerStatus": status })
    }

    fn remaining_seconds(&self) -> Option<u64> {
        if self.has_ended {
            return Some(0);
        }
        let (done, left) = (self.done - self.before, self.total.saturating_sub(self.done));
        let spent = self.began?.elapsed().as_secs_f64();
        (done > 1).then(|| (spent / (done - 1) as f64 * left as f64).ceil() as u64)
    }
}

/// Sends how far a run is, every few seconds, from a thread of its own.
pub struct TrainJobReporter {
    progress: Arc<Mutex<RunProgress>>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TrainJobReporter {
    /// For a run of `total` steps, of which some are `done`. What goes wrong is told once, until it works again.
    pub fn start(
        server: StatusServer,
        total: u64,
        done: u64,
        tell: fn(&str),
    ) -> std::io::Result<TrainJobReporter> {
        TrainJobReporter::every(INTERVAL, server, total, done, tell)
    }

    fn every(
        interval: Duration,
        server: StatusServer,
        total: u64,
        done: u64,
        tell: fn(&str),
    ) -> std::io::Result<TrainJobReporter> {
        let progress = Arc::new(Mutex::new(RunProgress {
            total,
            done,
            before: done,
            began: None,
            loss: None,
            evaluated: None,
            accuracy: None,
            has_ended: false,
        }));
        let (end, ended) = channel();
        let seen = Arc::clone(&progress);
        let report = move || {
            let mut works = true;
            loop {
                let last = ended.recv_timeout(interval) != Err(RecvTimeoutError::Timeout);
                let status = lock(&seen).status(SystemTime::now());
                let sent = server.send(&status);
                if let (Err(problem), true) = (&sent, works) {
                    tell(&format!("the TrainJob's status is not updated: {problem}"));
                }
                works = sent.is_ok();
                if last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("quelea-kubeflow".into()).spawn(report)?;
        Ok(TrainJobReporter { progress, end: Some(end), thread: Some(thread) })
    }

    /// Takes a record of the run.
    pub fn take(&mut self, record: &Record) {
        lock(&self.progress).take(record);
    }

    /// Sends the last report: the run has come to its end, or has not.
    pub fn finish(mut self, is_complete: bool) {
        lock(&self.progress).has_ended = is_complete;
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(progress: &Mutex<RunProgress>) -> std::sync::MutexGuard<'_, RunProgress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc::Receiver;

    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::{ServerConfig, ServerConnection, StreamOwned};

    use super::*;

    /// A request that has come: its head and its body.
    struct Heard {
        head: String,
        body: Value,
    }

    /// A status server with a certificate of its own, and what it hears.
    struct FakeController {
        url: String,
        folder: tempfile::TempDir,
        heard: Receiver<Heard>,
    }

    impl FakeController {
        fn start() -> FakeController {
            let signed = rcgen::generate_simple_self_signed(vec!["localhost".into()]);
            let signed = signed.expect("a certificate");
            let key =
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der()));
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_no_client_auth()
                .with_single_cert(vec![signed.cert.der().clone()], key)
                .expect("they fit");
            let config = Arc::new(config);
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = listener.local_addr().expect("it listens").port();
            let (send, heard) = channel();
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let connection = ServerConnection::new(Arc::clone(&config)).expect("a config");
                    let stream = StreamOwned::new(connection, stream);
                    // A client that does not know the certificate goes away.
                    let Ok(request) = answer(stream) else { continue };
                    if send.send(request).is_err() {
                        return;
                    }
                }
            });
            let folder = tempfile::tempdir().expect("a folder");
            std::fs::write(folder.path().join("ca.crt"), pem(signed.cert.der())).expect("written");
            let job = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/run/status";
            FakeController { url: format!("https://localhost:{port}{job}"), folder, heard }
        }

        fn server(&self) -> StatusServer {
            let path = |name: &str| self.folder.path().join(name).display().to_string();
            let server = StatusServer::from_env(|name| match name {
                "KUBEFLOW_TRAINER_SERVER_URL" => Some(self.url.clone()),
                "KUBEFLOW_TRAINER_SERVER_CA_CERT" => Some(path("ca.crt")),
                "KUBEFLOW_TRAINER_SERVER_TOKEN" => Some(path("token")),
                _ => None,
            });
            server.expect("all are set")
        }

        fn set_token(&self, token: &str) {
            let (new, path) = (self.folder.path().join("new"), self.folder.path().join("token"));
            std::fs::write(&new, token).expect("written");
            std::fs::rename(new, path).expect("in its place");
        }

        fn hear(&self) -> Heard {
            self.heard.recv_timeout(Duration::from_secs(60)).expect("a report")
        }
    }

    fn pem(der: &[u8]) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for three in der.chunks(3) {
            let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
            let bits = bits << (8 * (3 - three.len()));
            for place in 0..4 {
                let digit = DIGITS[(bits >> (18 - 6 * place)) as usize & 63];
                text.push(if place > three.len() { '=' } else { char::from(digit) });
            }
        }
        let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
        let lines: Vec<_> = lines.collect();
        let lines = lines.join("\n");
        format!("-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n")
    }

    fn answer(
        stream: StreamOwned<ServerConnection, std::net::TcpStream>,
    ) -> std::io::Result<Heard> {
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        let length = head.to_ascii_lowercase();
        let length = length.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.expect("a length").parse().expect("a number")];
        stream.read_exact(&mut body)?;
        let stream = stream.get_mut();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        stream.conn.send_close_notify();
        stream.flush()?;
        Ok(Heard { head, body: serde_json::from_slice(&body).expect("JSON") })
    }

    fn step(loss: f32) -> Record {
        let (compute, exposed, waiting) = (0.01, 0.0, 0.0);
        let event = RecordKind::Step { loss, samples: 1, compute, exposed, waiting };
        Record { t: 0.0, rank: 0, step: 1, event }
    }

    #[test]
    fn progress_goes_to_the_server_with_the_token_that_is_there_now() {
        let controller = FakeController::start();
        controller.set_token("first\n");
        let tick = Duration::from_millis(20);
        let reporter = TrainJobReporter::every(tick, controller.server(), 200, 50, |told| {
            panic!("nothing is wrong: {told}")
        });
        let mut reporter = reporter.expect("a thread");
        let before = controller.hear();
        assert!(before.head.starts_with("POST /apis/trainer.kubeflow.org/"), "{}", before.head);
        let head = before.head.to_ascii_lowercase();
        assert!(head.contains("authorization: bearer first\r\n"), "{head}");
        assert!(head.contains("content-type: application/json\r\n"), "{head}");
        let status = &before.body["trainerStatus"];
        assert_eq!(status["progressPercentage"], 25, "a resumed run is further");
        assert_eq!(status.get("estimatedRemainingSeconds"), None, "nothing is known yet");
        assert_eq!(status["lastUpdatedTime"].as_str().map(str::len), Some(20));
        (0..150).for_each(|_| reporter.take(&step(0.5)));
        controller.set_token("second");
        let later = loop {
            let heard = controller.hear();
            if heard.head.to_ascii_lowercase().contains("authorization: bearer second\r\n") {
                break heard.body["trainerStatus"].clone();
            }
        };
        assert_eq!(later["progressPercentage"], 99, "not before the run has ended");
        assert_eq!(later["metrics"][0], json!({ "name": "loss", "value": "0.5" }));
        reporter.finish(true);
        let last = std::iter::from_fn(|| controller.heard.try_recv().ok()).last();
        let last = &last.expect("a last report").body["trainerStatus"];
        assert_eq!(last["progressPercentage"], 100);
        assert_eq!(last["estimatedRemainingSeconds"], 0);
    }

    #[test]
    fn a_server_that_is_not_the_controller_hears_nothing_and_the_run_continues() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static TOLD: AtomicU32 = AtomicU32::new(0);
        let (controller, other) = (FakeController::start(), FakeController::start());
        controller.set_token("token");
        let ca = controller.folder.path().join("ca.crt");
        std::fs::copy(other.folder.path().join("ca.crt"), &ca).expect("copied");
        let tell: fn(&str) = |told| {
            assert!(told.starts_with("the TrainJob's status is not updated: https://"), "{told}");
            TOLD.fetch_add(1, Ordering::SeqCst);
        };
        let tick = Duration::from_millis(5);
        let reporter = TrainJobReporter::every(tick, controller.server(), 10, 0, tell);
        let mut reporter = reporter.expect("a thread");
        while TOLD.load(Ordering::SeqCst) == 0 {
            reporter.take(&step(1.0));
            std::thread::yield_now();
        }
        reporter.finish(false);
        assert_eq!(TOLD.load(Ordering::SeqCst), 1, "it is told once");
        assert!(controller.heard.try_recv().is_err());
    }

    #[test]
    fn elsewhere_there_is_no_server() {
        assert_eq!(StatusServer::from_env(|_| None), None);
        let empty = StatusServer::from_env(|_| Some(String::new()));
        assert_eq!(empty, None, "variables that are set to nothing");
    }
}
