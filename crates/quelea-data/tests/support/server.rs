//! A small HTTP server on this machine whose every answer is decided by the test.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub path: String,
    /// The first byte of `Range: bytes=N-`.
    pub from: Option<usize>,
}

/// An answer, byte for byte; the connection is closed behind it.
pub type Answer = Vec<u8>;

pub struct Server {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers the requests one after the other; the handler is told how many came before.
    pub fn new(mut answer: impl FnMut(usize, &Asked) -> Answer + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (asked, closed) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (all, end) = (Arc::clone(&asked), Arc::clone(&closed));
        let serve = move || {
            for (number, stream) in listener.incoming().enumerate() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.expect("a connection");
                let Some(request) = read(&stream) else { continue };
                all.lock().expect("no panic").push(request.clone());
                // The client may have gone.
                let _ = stream.write_all(&answer(number, &request));
            }
        };
        Server { address, asked, closed, thread: Some(std::thread::spawn(serve)) }
    }

    /// Everything that was asked for so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let path = first.split(' ').nth(1)?.to_string();
    let mut from = None;
    for line in lines {
        let line = line.ok()?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(range) = line.strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse().ok();
        }
    }
    Some(Asked { path, from })
}

/// An answer with a status line, headers and a body that may be shorter than announced.
pub fn answer(status: &str, headers: &[(&str, String)], body: &[u8]) -> Answer {
    let mut bytes = format!("HTTP/1.1 {status}\r\nConnection: close\r\n").into_bytes();
    for (name, value) in headers {
        bytes.extend(format!("{name}: {value}\r\n").bytes());
    }
    bytes.extend(b"\r\n");
    bytes.extend(body);
    bytes
}

/// The whole of `content`, or what lies behind `from`; of that only `sent` bytes come.
pub fn file(content: &[u8], from: Option<usize>, sent: usize) -> Answer {
    match from {
        None => {
            let length = ("Content-Length", content.len().to_string());
            answer("200 OK", &[length], &content[..sent.min(content.len())])
        }
        Some(from) if from >= content.len() => {
            let range = ("Content-Range", format!("bytes */{}", content.len()));
            answer("416 Range Not Satisfiable", &[range, ("Content-Length", "0".into())], b"")
        }
        Some(from) => {
            let rest = &content[from..];
            let range = format!("bytes {from}-{}/{}", content.len() - 1, content.len());
            let headers = [("Content-Range", range), ("Content-Length", rest.len().to_string())];
            answer("206 Partial Content", &headers, &rest[..sent.min(rest.len())])
        }
    }
}
