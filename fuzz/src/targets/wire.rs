//! Frames between ranks, and the heads and fields of control packets.

use quelea_core::message::{Message, Part, Rank};
use quelea_core::payload::Pool;
use quelea_wire::control::{self, HEAD_BYTES, Reader, Writer};
use quelea_wire::decoder::Decoder;
use quelea_wire::frame::{self, HEADER_BYTES, Limits, Route};

use crate::target::{FuzzTarget, InputFolder, InputFormat};

/// The targets of `quelea-wire`.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget {
        name: "frame",
        function: "quelea_wire::decoder::Decoder::take",
        format: InputFormat::Binary,
        seeds: frames,
        repair: repair_frame,
        read: read_frames,
        share: 8,
        memory_bytes: 3 << 20,
    },
    FuzzTarget {
        name: "control-fields",
        function: "quelea_wire::control::{decode_head, Reader}",
        format: InputFormat::Binary,
        seeds: packets,
        repair: repair_packet,
        read: read_fields,
        share: 8,
        memory_bytes: 256 << 10,
    },
];

const ROUTE: Route = Route { from: Rank(0), to: Rank(1) };
const PART_BYTES: u64 = 4 << 10;
const HELD_BYTES: u64 = 1 << 20;

fn frames() -> Vec<Vec<u8>> {
    let pool = Pool::new();
    let values = |count: usize| Part::Values(pool.copy(&vec![0.5; count]));
    let encoded = |bytes: usize| Part::Encoded { data: pool.take(bytes.div_ceil(4)), bytes };
    let shapes = [
        [Part::Empty, Part::Empty],
        [values(3), Part::Empty],
        [values(1), values(0)],
        [Part::Empty, encoded(7)],
        [encoded(0), values(900)],
    ];
    let frame = |(kind, parts): (usize, [Part; 2])| {
        let mut message = Message::new(kind as u8, 7, 2);
        message.parts = parts;
        let mut bytes = frame::encode_header(ROUTE, 5, &message).to_vec();
        frame::slices(&message).iter().for_each(|part| bytes.extend_from_slice(part));
        bytes
    };
    let mut frames: Vec<Vec<u8>> = shapes.into_iter().enumerate().map(frame).collect();
    frames.push(frames.concat());
    frames
}

#[expect(clippy::ptr_arg, reason = "the type that all repairs have")]
fn repair_frame(bytes: &mut Vec<u8>) {
    if bytes.len() >= HEADER_BYTES {
        bytes[..4].copy_from_slice(&frame::MAGIC);
        bytes[4..6].copy_from_slice(&quelea_wire::VERSION.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// In two pieces, as bytes come from the network, and once more into the spare memory of the decoder.
fn read_frames(bytes: &[u8], _: &InputFolder) {
    let limits =
        Limits { route: ROUTE, part_bytes: PART_BYTES, held_bytes: HELD_BYTES, inspects: true };
    let cut = bytes.first().map_or(0, |first| usize::from(*first) * bytes.len() / 256);
    let mut decoder = Decoder::new(limits, Pool::new().metered());
    let (first, second) = bytes.split_at(cut);
    for mut piece in [first, second] {
        while let Ok(Some((_, message))) = decoder.take(&mut piece) {
            assert!(message.parts.iter().all(|part| part.bytes() as u64 <= PART_BYTES));
        }
    }
    let mut decoder = Decoder::new(limits, Pool::new().metered());
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut head = &rest[..rest.len().min(HEADER_BYTES / 2)];
        rest = &rest[head.len()..];
        if decoder.take(&mut head).is_err() {
            return;
        }
        let spare = decoder.spare();
        let count = spare.len().min(rest.len());
        spare[..count].copy_from_slice(&rest[..count]);
        decoder.advance(count);
        rest = &rest[count..];
    }
}

fn packets() -> Vec<Vec<u8>> {
    let body = Writer::default().number(7u32).real(-0.5).text("ring").values(&[1.0, 2.0]);
    let lists =
        body.clone().list(&[3u64, 4], |w, item| w.number(*item)).list(&["a"], |w, t| w.text(t));
    vec![body.packet(9), lists.packet(9), Writer::default().packet(1)]
}

/// Puts length and checksum right in a packet.
pub(super) fn repair_packet(bytes: &mut Vec<u8>) {
    if bytes.len() >= HEAD_BYTES {
        let kind = u16::from_le_bytes([bytes[6], bytes[7]]);
        *bytes = control::encode(kind, &bytes[HEAD_BYTES..]);
    }
}

fn read_fields(bytes: &[u8], _: &InputFolder) {
    let Some((head, body)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return };
    let Ok(head) = control::decode_head(head, 64 << 10) else { return };
    let _ = head.check(body);
    let mut reader = Reader::new(head.kind, body);
    let _ = (reader.small::<u32>(), reader.real(), reader.text(), reader.values());
    let _ = reader.list(Reader::number);
    let _ = reader.list(|reader| Ok((reader.text()?, reader.flag()?)));
    let _ = reader.end();
}
