//! The page in a real browser: headless Chromium, without a network. Skipped, with a sentence, where it
//! is not installed.

mod seeing;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Arc;

use quelea_page::description::RunDescription;
use quelea_page::listener::{PageFraming, PageListener};
use quelea_page::log::RunLog;
use quelea_page::server::{PageServer, PageSource};
use quelea_record::{LinkTotal, ProcessMemory, Record, RecordKind};
use seeing::browser::Browser;
use seeing::{Serving, quelea, request, run, summary};
use serde_json::Value;

/// Set to a folder, the tests leave their pictures of the page there.
const PICTURES: &str = "QUELEA_PAGE_PICTURES";

fn keep_picture(browser: &Browser, name: &str) {
    if let Some(folder) = std::env::var_os(PICTURES) {
        let path = Path::new(&folder).join(format!("{name}.png"));
        std::fs::write(path, browser.screenshot()).expect("the folder is there");
    }
}

fn simulated(folder: &Path, name: &str, more: &[&str]) {
    let words = ["simulate", "-q", "--out", name, "--set", "evaluations=10"];
    let words: Vec<&str> = words.iter().chain(more).copied().collect();
    run(&words, folder);
}

/// The digits that stand on the page are those of `value`, rounded to as many as there are.
fn assert_shown(text: &str, value: f64, what: &str) {
    let number: String =
        text.chars().filter(|c| c.is_ascii_digit() || ".-+eE".contains(*c)).collect();
    let shown: f64 = number.parse().unwrap_or_else(|_| panic!("{what}: {text}"));
    let digits = number.split(['e', 'E']).next().expect("digits");
    let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len()) as i32;
    let exponent: i32 = number.split_once(['e', 'E']).map_or(0, |(_, e)| e.parse().expect("e"));
    let unit = 10.0_f64.powi(exponent - decimals);
    assert!((shown - value).abs() <= 0.5001 * unit, "{what}: {text} for {value}");
}

/// All digits that the page has of a number are those of the summary.
fn assert_same_number(on_page: &Value, value: &Value, what: &str) {
    let on_page: Value =
        serde_json::from_str(on_page.as_str().expect("text")).expect("a number as JSON");
    assert_eq!(on_page.as_f64(), value.as_f64(), "{what}");
}

/// What the page shows of a run that has ended is what its summary says.
fn assert_summary_shown(browser: &Browser, summary: &Value) {
    let terms = [
        ("loss", &summary["loss"], 1.0),
        ("accuracy", &summary["accuracy"], 100.0),
        ("samples per second", &summary["samples_per_second"], 1.0),
        ("samples", &summary["samples"], 1.0),
        ("clock", &summary["clock_seconds"], 1.0),
        ("consensus distance", &summary["consensus_distance"], 1.0),
    ];
    for (term, value, factor) in terms {
        let script = format!(
            "return document.querySelector('#figures [data-term=\"{term}\"] dd').textContent"
        );
        let text = browser.script(&script);
        let text = text.as_str().expect("text");
        match value.as_f64() {
            Some(value) => assert_shown(text, value * factor, term),
            None => assert_eq!(text, "–", "{term}"),
        }
        let whole = format!(
            "return document.querySelector('#figures [data-term=\"{term}\"]').dataset.value"
        );
        assert_same_number(&browser.script(&whole), value, term);
    }
    for (rank, worker) in summary["workers"].as_array().expect("workers").iter().enumerate() {
        let script = format!(
            "return document.querySelector('#ranks tr[data-rank=\"{rank}\"]').dataset.compute_seconds"
        );
        assert_same_number(&browser.script(&script), &worker["compute_seconds"], "compute");
    }
}

#[test]
fn a_finished_run_has_eight_panels_a_slider_that_moves_it_and_the_numbers_of_its_summary() {
    let Some(browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let hosts = ["--set", "workers=8", "--set", "cluster.hosts=2", "--set", "cluster.slow.3=3"];
    let gossip = [
        "--set",
        "algorithm.name=d-psgd",
        "--set",
        "topology.name=exponential",
        "--set",
        "epochs=4",
    ];
    simulated(folder.path(), "gossip", &[&hosts[..], &gossip[..]].concat());
    let path = folder.path().join("gossip");
    let serving = Serving::start(quelea().arg("page").arg(&path).args(["--bind", "127.0.0.1:0"]));
    browser.open(&format!("http://{}/", serving.address));
    browser.wait_for("return document.body.dataset.shown && document.querySelector('#chart-loss').dataset.points > 0");
    let summary = summary(&path);
    assert_summary_shown(&browser, &summary);
    for panel in
        ["topology", "ranks", "learning", "waits", "asynchrony", "membership", "advice", "actions"]
    {
        let tall = browser
            .script(&format!("return document.getElementById('panel-{panel}').offsetHeight"));
        assert!(tall.as_f64() > Some(30.0), "{panel}: {tall}");
    }
    assert_eq!(browser.script("return document.querySelectorAll('#topology .node').length"), 8);
    // The slider: half of the time is about half of the steps.
    browser.script("const s = document.getElementById('slider'); s.value = 500; s.dispatchEvent(new Event('input'))");
    let text = browser.wait_for(
        "const d = document.querySelector('#figures [data-term=steps]').dataset.value;
         return document.getElementById('status').textContent.includes('shown at') ? d : null",
    );
    let steps: f64 = text.as_str().and_then(|text| text.parse().ok()).expect("a number");
    let share = steps / summary["steps"].as_f64().expect("steps");
    assert!((0.4..0.6).contains(&share), "{share}");
    // A rank is selected by keyboard.
    browser.script(
        "const n = document.querySelector('#topology .node[data-rank=\"3\"]'); n.focus();
         n.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))",
    );
    browser.wait_for("return document.querySelector('#detail h3').textContent.includes('rank 3')");
    // Its history is that of the whole run.
    browser.wait_for("return document.querySelector('#detail canvas').dataset.points > 100");
    browser.script("document.getElementById('to-now').click()");
    browser.wait_for("return document.getElementById('status').textContent === 'finished'");
    assert_replays(&browser);
    for (width, height) in [(1280, 1000), (400, 900)] {
        browser.set_width(width, height);
        for scheme in ["light", "dark"] {
            browser.set_scheme(scheme);
            let wide = browser.wait_for("return document.documentElement.scrollWidth");
            assert!(wide.as_u64() <= Some(u64::from(width)), "{wide} at {width}");
            keep_picture(&browser, &format!("finished-{width}-{scheme}"));
        }
    }
    assert_eq!(browser.console_errors(), Vec::<String>::new());
}

/// The whole run is played from its beginning to its end, at the speed that is chosen.
fn assert_replays(browser: &Browser) {
    browser.script(
        "window.seen = [];
         const status = document.getElementById('status');
         new MutationObserver(() => window.seen.push(status.textContent))
             .observe(status, { childList: true, characterData: true, subtree: true });",
    );
    for speed in ["1", "whole"] {
        browser.script(&format!("document.getElementById('speed').value = '{speed}'"));
        browser.click("#play");
        browser
            .wait_for("return window.seen.filter((text) => text.includes('shown at')).length > 2");
        assert_eq!(browser.script("return document.getElementById('play').textContent"), "Pause");
        browser.click("#play");
        browser.wait_for("return document.getElementById('play').textContent === 'Play'");
        browser.script("window.seen = []");
    }
    browser.script("document.getElementById('speed').value = '100'");
    browser.click("#play");
    browser.wait_for(
        "return document.getElementById('status').textContent === 'finished'
             && document.getElementById('play').textContent === 'Play'",
    );
    browser.script("document.getElementById('speed').value = 'whole'");
}

#[test]
fn four_ranks_are_shown_within_two_seconds_and_a_killed_one_turns_red() {
    let Some(browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("live");
    let mut command = quelea();
    command.args(["train", "--processes", "--page", "127.0.0.1:0", "--out"]).arg(&out);
    command.args(["--set", "task.name=quadratic", "--set", "workers=4", "--set", "steps=400"]);
    command.args(["--set", "algorithm.name=d-psgd", "--set", "topology.name=ring"]);
    command.args(["--set", "task.compute_ms=20", "--set", "membership.min_workers=2"]);
    // Shared memory has no round trips.
    command.args(["--transport", "tcp"]);
    let mut serving = Serving::start(&mut command);
    serving.wait_for("the first steps", |state| state["progress"]["steps"].as_u64() > Some(8));
    let opened = std::time::Instant::now();
    browser.open(&format!("http://{}/", serving.address));
    browser.wait_for("return document.querySelectorAll('#ranks tr[data-state=running], #ranks tr[data-state=waiting]').length === 4");
    println!("four ranks after {:.2} s", opened.elapsed().as_secs_f64());
    // Processes have connections, whose round trips the system knows, and memory of their own.
    let state = serving.wait_for("a survey", |state| {
        let links = state["links"].as_array().expect("a list");
        let ranks = state["ranks"].as_array().expect("a list");
        links.len() == 8 && ranks.iter().all(|rank| rank["resident_bytes"].as_u64() > Some(0))
    });
    for link in state["links"].as_array().expect("a list") {
        let seconds = link["round_trip"].as_f64().expect("it is known");
        assert!(seconds > 0.0 && seconds < 60.0, "{link}");
    }
    browser.wait_for("return document.querySelector('#ranks tr[data-rank=\"0\"]').cells[9].textContent.endsWith('MB')");
    keep_picture(&browser, "live-1280-light");
    browser.script("document.querySelector('#ranks tr[data-rank=\"2\"] button').click()");
    browser.wait_for(
        "return document.querySelector('[data-action=kill]').textContent === 'Kill rank 2'",
    );
    let killed = std::time::Instant::now();
    let header = [("x-quelea-action", "1")];
    let done = request(&serving.address, "POST", "/api/act?action=kill&rank=2", &header, "");
    assert_eq!(done.status, 200, "{}", done.body);
    let colour = browser.wait_for(
        "const row = document.querySelector('#ranks tr[data-rank=\"2\"]');
         return row.dataset.state === 'lost' && getComputedStyle(row.cells[1]).color",
    );
    println!("rank 2 is {colour} after {:.2} s", killed.elapsed().as_secs_f64());
    let bad = browser.script("const p = document.createElement('p'); p.className = 'state-lost'; document.body.append(p); return getComputedStyle(p).color");
    assert_eq!(colour, bad);
    browser.wait_for("return document.querySelectorAll('#membership li').length >= 2");
    // The ring has closed over the rank that was lost.
    browser.wait_for(
        "const edges = [...document.querySelectorAll('#topology [data-edge]')];
         return edges.map((edge) => edge.dataset.edge).sort().join(' ') === '0-1 0-3 1-3'",
    );
    // The three that are left know how far they are apart.
    browser.wait_for("return document.querySelector('#chart-consensus').dataset.points > 12");
    browser.set_width(1280, 1500);
    browser.script("document.querySelector('#ranks tr[data-rank=\"2\"] button').click()");
    browser.wait_for("return document.getElementById('detail').hidden");
    keep_picture(&browser, "lost-1280-light");
    browser.wait_for("return document.getElementById('status').textContent === 'finished' || document.body.dataset.phase === 'ended'");
    assert!(serving.child.wait().expect("it ends").success());
    assert_summary_shown(&browser, &summary(&out));
    let unreachable =
        |error: &String| error.contains("ERR_CONNECTION") || error.contains("Failed to load");
    let errors: Vec<String> =
        browser.console_errors().into_iter().filter(|e| !unreachable(e)).collect();
    assert_eq!(errors, Vec::<String>::new());
}

#[test]
fn runs_of_a_folder_are_overlaid_and_filtered_by_their_configuration() {
    let Some(browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let quick = ["--set", "workers=4", "--set", "steps=40"];
    simulated(folder.path(), "a", &quick);
    simulated(folder.path(), "b", &[&quick[..], &["--set", "optimizer.lr=0.01"]].concat());
    let serving =
        Serving::start(quelea().arg("page").arg(folder.path()).args(["--bind", "127.0.0.1:0"]));
    browser.open(&format!("http://{}/", serving.address));
    browser.wait_for("return document.querySelector('#chart-overlay').dataset.points > 0");
    assert_eq!(browser.script("return document.querySelectorAll('#runs tbody tr').length"), 2);
    keep_picture(&browser, "runs-1280-light");
    for axis in ["t", "step", "samples", "bytes"] {
        let label = browser.script(&format!(
            "const a = document.getElementById('overlay-axis'); a.value = '{axis}';
             a.dispatchEvent(new Event('change'));
             const chart = document.getElementById('chart-overlay');
             return [Number(chart.dataset.points), chart.getAttribute('aria-label')]"
        ));
        assert!(label[0].as_u64() > Some(0), "{axis}: {label}");
        let named = label[1].as_str().expect("text");
        let unit =
            [("t", "seconds"), ("step", "steps"), ("samples", "samples"), ("bytes", "bytes")];
        let unit = unit.iter().find(|(name, _)| *name == axis).expect("one of them").1;
        assert!(named.contains(unit) && named.contains("a: ") && named.contains("b: "), "{named}");
    }
    browser.script("const f = document.getElementById('filter'); f.value = 'optimizer.lr=0.01'; f.dispatchEvent(new Event('input'))");
    let left = browser.script(
        "return [...document.querySelectorAll('#runs tbody tr')].map((row) => row.dataset.name)",
    );
    assert_eq!(left, serde_json::json!(["b"]));
    browser.script("document.querySelector('#runs tbody a').click()");
    browser.wait_for("return !document.getElementById('run-view').hidden && document.querySelector('#chart-loss').dataset.points > 0");
    assert_summary_shown(&browser, &summary(&folder.path().join("b")));
    assert_eq!(browser.console_errors(), Vec::<String>::new());
}

/// Selects a rank by its button in the table.
fn select_rank(browser: &Browser, rank: u32) {
    browser.click(&format!("#ranks tr[data-rank=\"{rank}\"] button"));
    browser.wait_for(&format!(
        "const title = document.querySelector('#detail h3');
         return title && title.textContent.includes('rank {rank},')"
    ));
}

#[test]
fn the_buttons_write_a_checkpoint_drop_and_kill_a_rank_and_stop_the_run() {
    let Some(browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("live");
    let mut command = quelea();
    command.args(["train", "--processes", "--page", "127.0.0.1:0", "--out"]).arg(&out);
    command.args(["--set", "task.name=quadratic", "--set", "workers=4", "--set", "steps=100000"]);
    command.args(["--set", "algorithm.name=d-psgd", "--set", "topology.name=ring"]);
    command.args(["--set", "task.compute_ms=20", "--set", "membership.min_workers=2"]);
    let mut serving = Serving::start(&mut command);
    browser.open(&format!("http://{}/", serving.address));
    browser.wait_for("return document.querySelectorAll('#actions button').length === 4");
    let said = |what: &str| {
        browser.wait_for(&format!(
            "return [...document.querySelectorAll('#membership li')].some((li) => li.textContent.includes('{what}'))"
        ))
    };
    browser.click("[data-action=checkpoint]");
    said("is on the disk");
    let events = serving.json("/api/state")["membership"].clone();
    let saved_at = events[0]["step"].as_u64().expect("the step of the checkpoint");
    // Without a rank there is nobody to drop; who says no to the question keeps the rank.
    assert_eq!(
        browser.script("return document.querySelector('[data-action=drop]').disabled"),
        true
    );
    select_rank(&browser, 3);
    browser.click("[data-action=drop]");
    browser.answer(false);
    let result = browser.script("return document.getElementById('action-result').textContent");
    assert_eq!(result, "a checkpoint is being written", "nothing was done since");
    browser.click("[data-action=drop]");
    browser.answer(true);
    said("rank 3 was lost");
    select_rank(&browser, 2);
    browser.click("[data-action=kill]");
    browser.answer(true);
    said("rank 2 was lost");
    let is_lost = "return ['2', '3'].every((rank) =>
        document.querySelector(`#ranks tr[data-rank='${rank}']`).dataset.state === 'lost')";
    browser.wait_for(is_lost);
    browser.click("[data-action=stop]");
    browser.answer(true);
    serving.child.wait().expect("it ends");
    // What it saved at its end can be resumed from.
    let kept = std::fs::read_dir(out.join("checkpoints")).expect("they are kept").flatten();
    let steps = kept.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix("step-")?.parse::<u64>().ok()
    });
    let last = steps.max().expect("a checkpoint");
    assert!(last > saved_at && last < 100_000, "{last} after {saved_at}");
}

/// Rank 3 is lost, and another worker takes its place with a state of 2.5 MB.
fn replace_rank(log: &RunLog) {
    let transferred = RecordKind::StateTransferred { bytes: 2_500_000, seconds: 0.125 };
    let events =
        [RecordKind::Lost, RecordKind::View { number: 1 }, RecordKind::Joined, transferred];
    for (t, event) in [0.2, 0.3, 0.4, 0.5].into_iter().zip(events) {
        log.take(&Record { t, rank: 3, step: 1, event });
    }
    log.take(&Record { t: 0.6, rank: 1, step: 1, event: RecordKind::TookOver });
}

#[test]
fn links_are_drawn_by_their_health_a_gpu_has_its_memory_and_joiners_their_state() {
    let Some(browser) = Browser::start() else { return };
    let config = serde_json::json!({
        "workers": 4, "steps": 10, "algorithm": { "name": "d-psgd" },
        "topology": { "name": "ring" }, "task": { "name": "a PyTorch script" },
        "cluster": { "bandwidth_gbps": 1.0 },
    });
    let log = RunLog::recorded(RunDescription::of_config(config, "links"), 1);
    replace_rank(&log);
    // From rank r to the next: as it should be, again and again, at the card's limit, slowly.
    let each = [(0, 80, 0, 1000), (1, 80, 2, 1000), (2, 80, 0, 110_000_000), (3, 9000, 0, 1000)];
    for (rank, round_trip_micros, resent, bytes_sent) in each {
        let peer = (rank + 1) % 4;
        let link = LinkTotal {
            peer,
            sent: 1,
            received: 1,
            bytes_sent,
            bytes_received: 0,
            round_trip_micros,
            resent,
        };
        let memory = ProcessMemory { resident_bytes: 1 << 30, gpu_bytes: 3 << 30 };
        let (awaiting, links) = (Vec::new(), vec![link]);
        let event = RecordKind::Account { awaiting, links, memory };
        log.take(&Record { t: 1.0, rank, step: 1, event });
    }
    let source = PageSource::Run(Arc::new(log));
    let server = PageServer::start("127.0.0.1:0", Default::default(), source).expect("a port");
    browser.open(&format!("http://{}/", server.address()));
    for (edge, health) in [("0-1", "good"), ("1-2", "lossy"), ("2-3", "busy"), ("0-3", "slow")] {
        browser.wait_for(&format!(
            "const edge = document.querySelector('#topology [data-edge=\"{edge}\"] .edge');
             return edge && edge.getAttribute('class') === 'edge {health}'"
        ));
    }
    let shown = browser.script(
        "return [...document.querySelectorAll('#ranks tbody tr')].map((row) => row.cells[10].textContent)",
    );
    assert_eq!(shown, serde_json::json!(["3.22 GB", "3.22 GB", "3.22 GB", "3.22 GB"]));
    let events = browser.script(
        "return [...document.querySelectorAll('#membership li')].map((li) => li.textContent)",
    );
    let expected = [
        "200.00 ms: rank 3 was lost at step 1",
        "300.00 ms: view 1: 3 ranks continue",
        "400.00 ms: a worker joined as rank 3 at step 1",
        "500.00 ms: rank 3 received its state: 2.50 MB in 0.125 s",
        "600.00 ms: the process of rank 1 controls the run",
    ];
    assert_eq!(events, serde_json::json!(expected));
    let marks = "return document.querySelectorAll('#membership-line [class^=event-]').length";
    assert_eq!(browser.script(marks), expected.len());
    assert_eq!(browser.console_errors(), Vec::<String>::new());
}

/// A page of this machine that shows another one inside itself, as a notebook does. Its address.
fn notebook(inside: &str) -> String {
    let body =
        format!("<!doctype html><title>notebook</title><iframe src=\"http://{inside}/\"></iframe>");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut asked = BufReader::new(stream.try_clone().expect("a socket"));
            let mut line = String::from("…");
            while line.trim() != "" {
                line.clear();
                asked.read_line(&mut line).expect("text");
            }
            let length = body.len();
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}");
            let answer = format!("{head}\r\nConnection: close\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).expect("sent");
        }
    });
    address
}

#[test]
fn a_notebook_shows_the_page_inside_itself_only_where_that_was_meant() {
    let Some(browser) = Browser::start() else { return };
    for framing in [PageFraming::Loopback, PageFraming::Nowhere] {
        let about = RunDescription {
            name: "framed".into(),
            workers: 3,
            hosts: vec![0; 3],
            ..RunDescription::default()
        };
        let log = Arc::new(RunLog::recorded(about, 1));
        let listener = PageListener::bind("127.0.0.1:0", Default::default()).expect("a port");
        let listener = listener.with_framing(framing);
        let server = PageServer::serve(listener, PageSource::Run(log)).expect("it serves");
        browser.open(&format!("http://{}/", notebook(&server.address().to_string())));
        browser.enter_frame();
        if framing == PageFraming::Loopback {
            browser.wait_for("return document.querySelectorAll('#ranks tbody tr').length === 3");
            assert_eq!(browser.console_errors(), Vec::<String>::new());
        } else {
            let rows = browser.script("return document.querySelectorAll('#ranks').length");
            assert_eq!(rows, 0, "the browser does not show it");
            let errors = browser.console_errors();
            assert!(errors.iter().any(|error| error.contains("frame-ancestors")), "{errors:?}");
        }
    }
}

/// Goes from one element to the next by the tab key; what each is called.
fn tab_through(browser: &Browser, most: usize) -> Vec<String> {
    let mut seen = Vec::new();
    for _ in 0..most {
        browser.press("\u{e004}");
        let name = browser.script(
            "const e = document.activeElement;
             return e.dataset.rank ? `${e.tagName} ${e.dataset.rank}` : e.id || e.tagName",
        );
        seen.push(name.as_str().unwrap_or_default().to_string());
    }
    seen
}

#[test]
fn everything_can_be_reached_and_used_by_keyboard() {
    let Some(browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let gossip = ["--set", "algorithm.name=d-psgd", "--set", "topology.name=ring"];
    let small = ["--set", "workers=4", "--set", "steps=40", "--set", "task.name=quadratic"];
    simulated(folder.path(), "ring", &[&gossip[..], &small[..]].concat());
    let path = folder.path().join("ring");
    let serving = Serving::start(quelea().arg("page").arg(&path).args(["--bind", "127.0.0.1:0"]));
    browser.open(&format!("http://{}/", serving.address));
    browser.wait_for("return document.body.dataset.shown && document.querySelector('#chart-loss').dataset.points > 0");
    let reached = tab_through(&browser, 40);
    for wanted in
        ["play", "slider", "to-now", "speed", "g 0", "g 3", "axis", "log-scale", "SUMMARY"]
    {
        assert!(reached.iter().any(|name| name == wanted), "{wanted}: {reached:?}");
    }
    // The slider moves by arrow keys, and a rank is selected by Enter.
    browser.script("document.getElementById('slider').focus()");
    browser.press("\u{e012}");
    browser.wait_for("return document.getElementById('status').textContent.includes('shown at')");
    browser.script("document.querySelector('#topology .node[data-rank=\"2\"]').focus()");
    browser.press("\u{e007}");
    browser.wait_for("return document.querySelector('#detail h3').textContent.includes('rank 2')");
    // From the rank to one of its links.
    browser.script("document.querySelector('#detail .choices button').focus()");
    browser.press("\u{e007}");
    browser.wait_for("return document.querySelector('#detail h3').textContent.startsWith('Link')");
    assert_eq!(browser.console_errors(), Vec::<String>::new());
}
