//! Event files for TensorBoard: a checked frame around one protobuf message each.
//!
//! A frame is the length of the message (8 bytes, little endian), a masked CRC-32C of that, the
//! message, and a masked CRC-32C of the message (TensorFlow's `record_writer.cc`). The message is
//! `tensorflow.Event`: `wall_time` is field 1 (double), `step` 2 (int64), `file_version` 3 (string),
//! `summary` 5; a summary has values in field 1, each with `tag` (1, string) and `simple_value`
//! (2, float).

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use quelea_record::{Record, RecordKind};

/// The folder in a run's folder.
pub const FOLDER: &str = "tensorboard";
/// Steps of a worker between two written losses, at most this many per run and worker.
const LOSSES: u64 = 2000;

/// Writes the records of a run as scalars.
pub struct TensorboardWriter<W: Write> {
    out: W,
    /// When the run began, by the clock on the wall.
    begun: f64,
    /// Every so many steps the loss of a mini-batch is written.
    stride: u64,
    /// The first failure to write; nothing more is written after it.
    failure: Option<io::Error>,
}

impl TensorboardWriter<BufWriter<File>> {
    /// A new event file in the folder of a run of this many steps.
    pub fn create(run: &Path, steps: u64) -> io::Result<TensorboardWriter<BufWriter<File>>> {
        let folder = run.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let begun = seconds_now();
        let (second, process) = (begun as u64, std::process::id());
        let name = format!("events.out.tfevents.{second:010}.quelea.{process}.0");
        TensorboardWriter::new(BufWriter::new(File::create(folder.join(name))?), begun, steps)
    }
}

fn seconds_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl<W: Write> TensorboardWriter<W> {
    /// Writes to `out` a run of this many steps that began at `begun` (seconds since 1970).
    pub fn new(mut out: W, begun: f64, steps: u64) -> io::Result<TensorboardWriter<W>> {
        let mut version = ProtoMessage::default();
        version.double(1, begun);
        version.bytes(3, b"brain.Event:2");
        write_frame(&mut out, &version.0)?;
        let stride = steps.div_ceil(LOSSES).max(1);
        Ok(TensorboardWriter { out, begun, stride, failure: None })
    }

    /// Takes a record.
    pub fn take(&mut self, record: &Record) {
        let rank = record.rank;
        let scalars: Vec<(String, f64)> = match &record.event {
            RecordKind::Step { loss, compute, exposed, waiting, .. } => {
                if !record.step.is_multiple_of(self.stride) {
                    return;
                }
                vec![
                    (format!("loss/rank_{rank}"), f64::from(*loss)),
                    (format!("step_seconds/rank_{rank}"), compute + exposed + waiting),
                ]
            }
            RecordKind::Evaluation { loss, accuracy, consensus } => {
                let accuracy = accuracy.map(|share| ("evaluation/accuracy".to_string(), share));
                let mut scalars = vec![
                    ("evaluation/loss".to_string(), *loss),
                    ("evaluation/consensus_distance".to_string(), *consensus),
                ];
                scalars.extend(accuracy);
                scalars
            }
            RecordKind::Deviation { distance, .. } => {
                vec![(format!("deviation/rank_{rank}"), *distance)]
            }
            _ => return,
        };
        self.write(record, &scalars);
    }

    fn write(&mut self, record: &Record, scalars: &[(String, f64)]) {
        if self.failure.is_some() {
            return;
        }
        let mut summary = ProtoMessage::default();
        for (tag, value) in scalars {
            let mut one = ProtoMessage::default();
            one.bytes(1, tag.as_bytes());
            one.float(2, *value as f32);
            summary.bytes(1, &one.0);
        }
        let mut event = ProtoMessage::default();
        event.double(1, self.begun + record.t);
        event.number(2, record.step);
        event.bytes(5, &summary.0);
        self.failure = write_frame(&mut self.out, &event.0).err();
    }

    /// Writes what is pending; why that failed, or why an earlier record did.
    pub fn finish(mut self) -> io::Result<()> {
        match self.failure.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }
}

/// A protobuf message as it is written.
#[derive(Default)]
struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    fn key(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.key(field, 0);
        self.varint(number);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn float(&mut self, field: u64, value: f32) {
        self.key(field, 5);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

fn write_frame(out: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let length = (message.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&masked_crc(&length).to_le_bytes())?;
    out.write_all(message)?;
    out.write_all(&masked_crc(message).to_le_bytes())
}

/// A checksum of bytes that contain checksums must not be one itself: it is rotated and shifted.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli), bit by bit: event files are small.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    };
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        // RFC 3720, B.4, and the check value of CRC-32C.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn a_record_is_one_frame_with_its_scalars() {
        let mut writer = TensorboardWriter::new(Vec::new(), 100.0, 10).expect("memory");
        let head = writer.out.len();
        let event = RecordKind::Evaluation { loss: 0.5, accuracy: None, consensus: 0.0 };
        writer.take(&Record { t: 1.5, rank: 0, step: 300, event });
        let frame = &writer.out[head..];
        let length = u64::from_le_bytes(frame[..8].try_into().expect("8 bytes")) as usize;
        assert_eq!(frame.len(), 8 + 4 + length + 4);
        let message = &frame[12..12 + length];
        assert_eq!(message[0], 1 << 3 | 1);
        assert_eq!(message[1..9], 101.5_f64.to_le_bytes());
        assert_eq!(message[9..12], [2 << 3, 0xac, 0x02], "300 as a varint");
        let tag = b"evaluation/loss";
        let place = message.windows(tag.len()).position(|window| window == tag).expect("the tag");
        let value = &message[place + tag.len()..][..5];
        assert_eq!(value[0], 2 << 3 | 5);
        assert_eq!(value[1..], 0.5_f32.to_le_bytes());
    }
}
