//! Reads `records.jsonl` back: one line, one record.

use quelea_record::{AwaitedRank, FactKind, LinkTotal, ProcessMemory, Record, RecordKind};
use serde::Deserialize;

/// Every key that a line can have. Names of kinds need no memory of their own.
#[derive(Deserialize)]
struct Line<'a> {
    t: f64,
    rank: u32,
    step: u64,
    #[serde(borrow)]
    kind: std::borrow::Cow<'a, str>,
    loss: Option<f64>,
    samples: Option<u32>,
    compute: Option<f64>,
    exposed: Option<f64>,
    waiting: Option<f64>,
    seconds: Option<f64>,
    to: Option<u32>,
    peer: Option<u32>,
    bytes: Option<u64>,
    accuracy: Option<f64>,
    consensus: Option<f64>,
    loss_mean: Option<f64>,
    loss_worst: Option<f64>,
    accuracy_mean: Option<f64>,
    accuracy_worst: Option<f64>,
    failure: Option<String>,
    number: Option<u32>,
    updates: Option<u64>,
    gradients: Option<u64>,
    sender: Option<u64>,
    awaiting: Option<Vec<AwaitedLine>>,
    links: Option<Vec<Vec<u64>>>,
    resident_bytes: Option<u64>,
    gpu_bytes: Option<u64>,
    distance: Option<f64>,
    error: Option<f64>,
}

#[derive(Deserialize)]
struct AwaitedLine {
    rank: u32,
    what: String,
}

/// The record of a line; nothing where it is not whole, or of a kind that this version does not know.
pub fn read_line(line: &str) -> Option<Record> {
    let line: Line<'_> = serde_json::from_str(line).ok()?;
    let (t, rank, step) = (line.t, line.rank, line.step);
    let event = event(line)?;
    Some(Record { t, rank, step, event })
}

fn event(line: Line<'_>) -> Option<RecordKind> {
    // What is not a finite number was written as `null`.
    let real = |value: Option<f64>| value.unwrap_or(f64::NAN);
    Some(match &*line.kind {
        "step" => RecordKind::Step {
            loss: real(line.loss) as f32,
            samples: line.samples.unwrap_or(0),
            compute: line.compute.unwrap_or(0.0),
            exposed: line.exposed.unwrap_or(0.0),
            waiting: line.waiting.unwrap_or(0.0),
        },
        "compute" => RecordKind::Compute { seconds: real(line.seconds) },
        "transfer" => RecordKind::Transfer {
            to: line.to?,
            bytes: line.bytes.unwrap_or(0),
            seconds: real(line.seconds),
        },
        "evaluation" => RecordKind::Evaluation {
            loss: real(line.loss),
            accuracy: line.accuracy,
            consensus: real(line.consensus),
        },
        "workers" => RecordKind::Workers {
            loss: [real(line.loss_mean), real(line.loss_worst)],
            accuracy: line
                .accuracy_mean
                .zip(line.accuracy_worst)
                .map(|(mean, worst)| [mean, worst]),
        },
        "checkpoint" => RecordKind::Checkpoint { failure: line.failure },
        "lost" => RecordKind::Lost,
        "left" => RecordKind::Left,
        "joined" => RecordKind::Joined,
        "state_transferred" => RecordKind::StateTransferred {
            bytes: line.bytes.unwrap_or(0),
            seconds: real(line.seconds),
        },
        "reconnected" => RecordKind::Reconnected { peer: line.peer? },
        "took_over" => RecordKind::TookOver,
        "view" => RecordKind::View { number: line.number? },
        "deviation" => {
            RecordKind::Deviation { distance: real(line.distance), error: real(line.error) }
        }
        "account" => RecordKind::Account {
            awaiting: line.awaiting.unwrap_or_default().into_iter().map(awaited).collect(),
            links: line.links.unwrap_or_default().iter().map(|link| link_total(link)).collect(),
            memory: ProcessMemory {
                resident_bytes: line.resident_bytes.unwrap_or(0),
                gpu_bytes: line.gpu_bytes.unwrap_or(0),
            },
        },
        fact => {
            let kind = FactKind::find(fact)?;
            let number = line.updates.or(line.gradients).or(line.sender).unwrap_or(1);
            RecordKind::Measured { kind, number }
        }
    })
}

fn awaited(line: AwaitedLine) -> AwaitedRank {
    AwaitedRank { rank: line.rank, what: line.what }
}

/// Lines of earlier versions have fewer numbers.
fn link_total(numbers: &[u64]) -> LinkTotal {
    let number = |place: usize| numbers.get(place).copied().unwrap_or(0);
    LinkTotal {
        peer: number(0) as u32,
        sent: number(1),
        received: number(2),
        bytes_sent: number(3),
        bytes_received: number(4),
        round_trip_micros: number(5),
        resent: number(6),
    }
}

#[cfg(test)]
mod tests {
    use quelea_record::FACTS;

    use super::*;
    use crate::files::records::write_line;

    #[test]
    fn every_record_is_read_back_as_it_was_written() {
        let awaiting = vec![AwaitedRank { rank: 3, what: "a \"chunk\"".into() }];
        let links = vec![link_total(&[1, 2, 3, 4, 5, 6, 7])];
        let memory = ProcessMemory { resident_bytes: 8, gpu_bytes: 9 };
        let mut events = vec![
            RecordKind::Step { loss: 0.1, samples: 7, compute: 1e-9, exposed: 2.5, waiting: 0.0 },
            RecordKind::Compute { seconds: 0.5 },
            RecordKind::Transfer { to: 1, bytes: 80, seconds: 0.5 },
            RecordKind::Evaluation { loss: 1.0, accuracy: Some(0.5), consensus: 0.25 },
            RecordKind::Evaluation { loss: 1.0, accuracy: None, consensus: 0.25 },
            RecordKind::Workers { loss: [1.0, 2.0], accuracy: Some([0.5, 0.25]) },
            RecordKind::Checkpoint { failure: Some("disk \"full\"".into()) },
            RecordKind::Checkpoint { failure: None },
            RecordKind::Account { awaiting, links, memory },
            RecordKind::Deviation { distance: 0.5, error: 0.01 },
            RecordKind::Lost,
            RecordKind::Left,
            RecordKind::Joined,
            RecordKind::StateTransferred { bytes: 2_000_000, seconds: 0.125 },
            RecordKind::Reconnected { peer: 3 },
            RecordKind::TookOver,
            RecordKind::View { number: 2 },
        ];
        let facts = FACTS.into_iter();
        events.extend(facts.map(|kind| RecordKind::Measured {
            kind,
            number: if kind.number.is_some() { 5 } else { 1 },
        }));
        for event in events {
            let record = Record { t: 0.1 + 0.2, rank: 3, step: 7, event };
            let mut bytes = Vec::new();
            write_line(&mut bytes, &record).expect("written");
            let text = String::from_utf8(bytes).expect("text");
            assert_eq!(read_line(&text), Some(record), "{text}");
        }
    }

    #[test]
    fn half_a_line_is_no_record() {
        assert_eq!(read_line("{\"t\":0.5,\"rank\":1,\"st"), None);
        assert_eq!(read_line("{\"t\":0.5,\"rank\":1,\"step\":2,\"kind\":\"unheard-of\"}"), None);
    }
}
