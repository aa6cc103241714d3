//! `records.jsonl` as server-sent events: those that are kept, then each as it comes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures_util::stream;

use crate::log::{LogPhase, RunLog};

/// How often a stream looks for new records.
const STREAM_INTERVAL: Duration = Duration::from_millis(100);
/// Records that are sent at once.
const STREAM_RECORDS: usize = 2000;

/// The records of a run from number `first` on, until it has ended.
pub(crate) fn body(log: Arc<RunLog>, first: u64) -> Body {
    let start = StreamState { log, next: first, is_over: false };
    Body::from_stream(stream::unfold(start, |mut at| async move {
        let bytes = at.next_events().await?;
        Some((Ok::<_, Infallible>(bytes), at))
    }))
}

struct StreamState {
    log: Arc<RunLog>,
    next: u64,
    is_over: bool,
}

impl StreamState {
    /// Waits for the next records; nothing when the run has ended and all were sent.
    async fn next_events(&mut self) -> Option<Vec<u8>> {
        if self.is_over {
            return None;
        }
        loop {
            let has_ended = self.log.phase() != LogPhase::Open;
            let (lines, next) = self.log.lines_from(self.next, STREAM_RECORDS);
            if !lines.is_empty() {
                let events = events(&lines, next);
                self.next = next;
                return Some(events);
            }
            if has_ended {
                self.is_over = true;
                return Some(b"event: end\ndata: {}\n\n".to_vec());
            }
            tokio::time::sleep(STREAM_INTERVAL).await;
        }
    }
}

/// One event per line. Each bears the number of the record that follows it, from which a client that was cut off
/// resumes (`Last-Event-ID`).
fn events(lines: &[u8], next: u64) -> Vec<u8> {
    let lines: Vec<&[u8]> =
        lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    let first = next - lines.len() as u64;
    let mut events = Vec::new();
    for (number, line) in (first + 1..).zip(lines) {
        events.extend_from_slice(b"data: ");
        events.extend_from_slice(line);
        events.extend_from_slice(format!("\nid: {number}\n\n").as_bytes());
    }
    events
}
