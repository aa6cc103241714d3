//! One rank as a safetensors file: its vectors under their names, numbers under `#name`.

use std::collections::BTreeMap;

use quelea_core::state::Saved;
use quelea_record::{FactKind, FactTotals, RankCheckpoint, RankReport};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

/// Before the name of a number.
const NUMBER: char = '#';
/// Before the name of a number of the report.
const REPORT: &str = "#report.";

/// The bytes of the file.
pub fn to_bytes(part: &RankCheckpoint) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let of_state =
        part.state.numbers.iter().map(|(name, value)| (format!("{NUMBER}{name}"), value));
    let report = numbers(&part.report);
    let of_report = report.iter().map(|(name, value)| (format!("{REPORT}{name}"), value));
    let numbers: Vec<(String, [u8; 8])> =
        of_state.chain(of_report).map(|(name, value)| (name, value.to_le_bytes())).collect();
    let mut views: Vec<(&str, TensorView<'_>)> = Vec::new();
    for (name, bytes) in &numbers {
        views.push((name, TensorView::new(Dtype::U64, Vec::new(), bytes)?));
    }
    for (name, values) in &part.state.vectors {
        let bytes = bytemuck::cast_slice(values);
        views.push((name, TensorView::new(Dtype::F32, vec![values.len()], bytes)?));
    }
    safetensors::serialize(views, None)
}

/// What the bytes of a file hold.
pub fn from_bytes(bytes: &[u8]) -> Result<RankCheckpoint, String> {
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let mut state = Saved::default();
    let mut report = BTreeMap::new();
    for (name, tensor) in tensors.iter() {
        let data = tensor.data();
        match (tensor.dtype(), <[u8; 8]>::try_from(data)) {
            (Dtype::U64, Ok(word)) => {
                let value = u64::from_le_bytes(word);
                if let Some(name) = name.strip_prefix(REPORT) {
                    report.insert(name.to_string(), value);
                } else if let Some(name) = name.strip_prefix(NUMBER) {
                    state.numbers.insert(name.to_string(), value);
                }
            }
            (Dtype::F32, _) => {
                let words = data.as_chunks::<4>().0.iter();
                let values = words.map(|word| f32::from_le_bytes(*word)).collect();
                state.vectors.insert(name.to_string(), values);
            }
            (other, _) => return Err(format!("`{name}` is of type {other:?}")),
        }
    }
    Ok(RankCheckpoint { state, report: totals(&report), ..RankCheckpoint::default() })
}

/// Real numbers as their bits.
fn numbers(report: &RankReport) -> Vec<(String, u64)> {
    let fixed = [
        ("rank", u64::from(report.rank)),
        ("is_server", u64::from(report.is_server)),
        ("steps", report.steps),
        ("samples", report.samples),
        ("compute_seconds", report.compute_seconds.to_bits()),
        ("exposed_seconds", report.exposed_seconds.to_bits()),
        ("waiting_seconds", report.waiting_seconds.to_bits()),
        ("bytes_sent", report.bytes_sent),
        ("bytes_received", report.bytes_received),
        ("messages_sent", report.messages_sent),
        ("last_loss", u64::from(report.last_loss.to_bits())),
    ];
    let facts = report.facts.iter();
    let facts = facts.map(|(name, number, times)| (format!("{name}.{number}"), times));
    fixed.into_iter().map(|(name, value)| (name.to_string(), value)).chain(facts).collect()
}

fn totals(numbers: &BTreeMap<String, u64>) -> RankReport {
    let number = |name: &str| numbers.get(name).copied().unwrap_or(0);
    let seconds = |name: &str| f64::from_bits(number(name));
    let mut facts = FactTotals::default();
    for (name, times) in numbers {
        let Some((name, number)) = name.split_once('.') else { continue };
        if let (Some(kind), Ok(number)) = (FactKind::find(name), number.parse()) {
            facts.add(kind, number, *times);
        }
    }
    RankReport {
        rank: number("rank") as u32,
        is_server: number("is_server") != 0,
        steps: number("steps"),
        samples: number("samples"),
        compute_seconds: seconds("compute_seconds"),
        exposed_seconds: seconds("exposed_seconds"),
        waiting_seconds: seconds("waiting_seconds"),
        bytes_sent: number("bytes_sent"),
        bytes_received: number("bytes_received"),
        messages_sent: number("messages_sent"),
        last_loss: f32::from_bits(number("last_loss") as u32),
        facts,
        ..RankReport::default()
    }
}

#[cfg(test)]
mod tests {
    use quelea_record::{HALF_EXCHANGE, STALENESS};

    use super::*;

    #[test]
    fn a_part_comes_back_to_the_bit() {
        let state = Saved {
            numbers: [("step".into(), 7), ("rng.0".into(), u64::MAX), ("a".into(), 1)].into(),
            // A flag and a vector may have the same name.
            vectors: [("a".into(), vec![1.5, -0.0, f32::NAN]), ("b".into(), vec![])].into(),
        };
        let mut facts = FactTotals::default();
        facts.add(&STALENESS, 12, 4);
        facts.add(&HALF_EXCHANGE, 1, 2);
        let report = RankReport {
            rank: 3,
            steps: 9,
            compute_seconds: 0.1,
            last_loss: -2.5,
            facts,
            ..RankReport::default()
        };
        let part = RankCheckpoint { state, report, ..RankCheckpoint::default() };
        let read = from_bytes(&to_bytes(&part).expect("written")).expect("read");
        let bits = |part: &RankCheckpoint| -> Vec<u32> {
            part.state.vectors["a"].iter().map(|x| x.to_bits()).collect()
        };
        assert_eq!(bits(&read), bits(&part));
        assert_eq!(read.state.numbers, part.state.numbers);
        assert_eq!(read.report, part.report);
        assert_eq!(read.state.vectors["b"], Vec::<f32>::new());
    }
}
