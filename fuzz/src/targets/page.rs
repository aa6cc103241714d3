//! The page: requests to its server, answers to its client, folders of runs.

use std::cell::OnceCell;

use quelea_page::untrusted::{self, PipedServer};
use quelea_page::{folder, metrics};

use crate::target::{FuzzTarget, InputFolder, InputFormat, as_it_is};

/// The targets of `quelea-page`.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget {
        name: "http-request",
        function: "quelea_page::server, over a pipe",
        format: InputFormat::Text,
        seeds: requests,
        repair: as_it_is,
        read: read_request,
        share: 1,
        memory_bytes: 8 << 20,
    },
    FuzzTarget {
        name: "http-answer",
        function: "quelea_page::client::parse",
        format: InputFormat::Text,
        seeds: answers,
        repair: as_it_is,
        read: |bytes, _| {
            untrusted::client_answer(bytes);
        },
        share: 8,
        memory_bytes: 16 << 20,
    },
    FuzzTarget {
        name: "run-folder",
        function: "quelea_page::folder::open: a summary and records",
        format: InputFormat::Text,
        seeds: folders,
        repair: as_it_is,
        read: read_folder,
        share: 1,
        memory_bytes: 64 << 20,
    },
];

fn requests() -> Vec<Vec<u8>> {
    let texts = [
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /api/state?t=0.5&run=x HTTP/1.0\r\nHost: 127.0.0.1:8600\r\n\r\n",
        "GET /api/records?from=3 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "POST /api/act?action=stop&rank=1 HTTP/1.1\r\nHost: localhost\r\nx-quelea-action: 1\r\nContent-Length: 2\r\n\r\nab",
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\nCookie: a=b; quelea_token=y\r\n\r\n",
        "GET /api/history?rank=1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /api/records HTTP/1.0\r\nHost: localhost\r\nLast-Event-ID: 7\r\n\r\n",
        "GET /api/curves HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\nGET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

fn read_request(bytes: &[u8], _: &InputFolder) {
    thread_local! {
        static SERVER: OnceCell<PipedServer> = const { OnceCell::new() };
    }
    let answer = SERVER.with(|server| {
        let server = server.get_or_init(|| PipedServer::new().expect("a runtime"));
        server.answer(bytes)
    });
    // A handler that panics closes the connection, or answers that something is wrong inside.
    assert!(!answer.starts_with(b"HTTP/1.1 500"), "{}", answer.escape_ascii());
}

fn answers() -> Vec<Vec<u8>> {
    let texts = [
        "HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{\"a\":[1,2,{\"b\":null}]}",
        "HTTP/1.0 401 Unauthorized\r\n\r\n",
        "HTTP/1.0 200\r\n\r\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

const SUMMARY: &str = r#"{"config":{"workers":3,"steps":50,"algorithm":{"name":"d-psgd"},"task":{"name":"quadratic"},"topology":{"name":"ring"},"cluster":{"bandwidth_gbps":10}},"records_stride":2,"steps":50,"clock_seconds":1.5,"warnings":[]}"#;
const RECORDS: &str = r#"{"t":0.1,"rank":1,"step":1,"kind":"step","loss":0.1,"samples":7,"compute":1e-9,"exposed":2.5,"waiting":0.0}
{"t":0.2,"rank":0,"step":2,"kind":"evaluation","loss":1.0,"accuracy":0.5,"consensus":0.25}
{"t":0.3,"rank":0,"step":2,"kind":"account","awaiting":[{"rank":1,"what":"a chunk"}],"links":[[1,2,3,4,5]]}
{"t":0.4,"rank":0,"step":2,"kind":"transfer","to":1,"bytes":80,"seconds":0.5}
{"t":0.5,"rank":2,"step":2,"kind":"lost"}
{"t":0.6,"rank":0,"step":2,"kind":"view","number":1}
"#;

fn folders() -> Vec<Vec<u8>> {
    vec![format!("\0{SUMMARY}").into_bytes(), format!("\x01{RECORDS}").into_bytes()]
}

fn read_folder(bytes: &[u8], scratch: &InputFolder) {
    let files = [("summary.json", SUMMARY.into()), ("records.jsonl", RECORDS.into())];
    scratch.write_set(&files, bytes);
    if let Ok(log) = folder::open(scratch.path(), None) {
        let _ = (log.state_json(None), log.state_json(Some(0.25)), log.curves_json());
        let _ = metrics::text(&log);
        let _ = folder::entry_json(scratch.path());
    }
}
