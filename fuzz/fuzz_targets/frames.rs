//! Any bytes, in any two pieces, into the frame decoder: `cargo +nightly fuzz run frames`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quelea_core::message::Rank;
use quelea_core::payload::Pool;
use quelea_wire::decoder::Decoder;
use quelea_wire::frame::{Limits, Route};

fuzz_target!(|input: (u16, Vec<u8>)| {
    let (cut, bytes) = input;
    let route = Route { from: Rank(0), to: Rank(1) };
    let limits = Limits { route, part_bytes: 1 << 12, held_bytes: 1 << 20, inspects: true };
    let mut decoder = Decoder::new(limits, Pool::new());
    let (first, second) = bytes.split_at(usize::from(cut).min(bytes.len()));
    for mut piece in [first, second] {
        while let Ok(Some((_, message))) = decoder.take(&mut piece) {
            assert!(message.parts.iter().all(|part| part.bytes() <= 1 << 12));
        }
    }
});
