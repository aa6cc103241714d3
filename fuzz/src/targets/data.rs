//! Files of data sets: images, text, vocabularies, packed files, archives.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use quelea_data::catalogue::ExpectedFile;
use quelea_data::files::Content;
use quelea_data::text::{SentencePairs, Vocabulary, plain};
use quelea_data::{images, untrusted};
use sha2::{Digest, Sha256};

use crate::target::{FuzzTarget, InputFolder, InputFormat, as_it_is};

/// The targets of `quelea-data`.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget {
        name: "idx",
        function: "quelea_data::images::idx, one of its four files",
        seeds: idx_seeds,
        // A header is believed up to 64 MiB, which the system only lends.
        memory_bytes: 130 << 20,
        ..files(|bytes, scratch| {
            scratch.write_set(&idx_files(), bytes);
            let _ = images::idx(scratch.path());
        })
    },
    FuzzTarget {
        name: "cifar",
        function: "quelea_data::images::cifar10, one batch of three images",
        seeds: || vec![cifar_file()],
        memory_bytes: 1 << 20,
        ..files(|bytes, scratch| {
            let _ = untrusted::cifar_batch(&scratch.write("data_batch_1.bin", bytes), CIFAR_IMAGES);
        })
    },
    FuzzTarget {
        name: "picture",
        function: "quelea_data::images::folder, one JPEG or PNG",
        seeds: pictures,
        repair: repair_png,
        memory_bytes: 256 << 20,
        share: 1,
        ..files(|bytes, scratch| {
            let _ = untrusted::picture(&scratch.write("picture", bytes));
        })
    },
    FuzzTarget {
        name: "sentences",
        function: "quelea_data::text::SentencePairs::read, one of two languages",
        format: InputFormat::Text,
        seeds: || vec![b"\0Ein Mann.\nZwei Hunde!\n".to_vec(), b"\x01a man\r\ntwo dogs\n".to_vec()],
        memory_bytes: 4 << 20,
        ..files(read_sentences)
    },
    FuzzTarget {
        name: "plain-text",
        function: "quelea_data::text::plain",
        format: InputFormat::Text,
        seeds: || {
            vec![b"To be, or not to be, that is the question.".to_vec(), packed(&[b'a'; 500])]
        },
        memory_bytes: 70 << 20,
        ..files(|bytes, scratch| {
            let _ = plain(&scratch.write("input.txt", bytes));
        })
    },
    FuzzTarget {
        name: "vocabulary",
        function: "quelea_data::text::Vocabulary::load",
        format: InputFormat::Text,
        seeds: vocabularies,
        repair: repair_vocabulary,
        memory_bytes: 160 << 20,
        ..files(|bytes, scratch| {
            if let Ok(read) = Vocabulary::load(&scratch.write("vocabulary", bytes)) {
                let text = "to be or not";
                assert_eq!(read.decode(&read.encode(text)), text);
            }
        })
    },
    FuzzTarget {
        name: "packed",
        function: "quelea_data::files::Content, gzip and xz",
        seeds: || vec![packed(b"some text, some text"), XZ.to_vec(), b"plain".to_vec()],
        // The dictionary that an xz stream may ask for is 256 MiB.
        memory_bytes: 300 << 20,
        ..files(|bytes, scratch| {
            if let Ok(mut content) = Content::open(&scratch.write("packed", bytes)) {
                let _ = content.rest(1 << 20);
                let _ = content.read(&mut [0]);
            }
        })
    },
    FuzzTarget {
        name: "archive",
        function: "quelea_data::fetch::archive::unpack",
        seeds: || vec![archive()],
        repair: repair_archive,
        memory_bytes: 4 << 20,
        ..files(read_archive)
    },
];

/// What readers of files have in common.
const fn files(read: fn(&[u8], &InputFolder)) -> FuzzTarget {
    FuzzTarget {
        name: "",
        function: "",
        format: InputFormat::Binary,
        seeds: Vec::new,
        repair: as_it_is,
        read,
        share: 2,
        memory_bytes: 1 << 20,
    }
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory can be written to");
    encoder.finish().expect("memory can be written to")
}

/// `printf 'some text\n' | xz`.
const XZ: &[u8] = include_bytes!("some-text.xz");

fn idx_files() -> [(&'static str, Vec<u8>); 4] {
    let images = [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3][..], &[9; 12]].concat();
    let labels = vec![0, 0, 8, 1, 0, 0, 0, 2, 0, 1];
    [
        ("train-images-idx3-ubyte", images.clone()),
        ("train-labels-idx1-ubyte", labels.clone()),
        ("t10k-images-idx3-ubyte", images),
        ("t10k-labels-idx1-ubyte", labels),
    ]
}

/// A file of the set, and before it which one it is.
fn idx_seeds() -> Vec<Vec<u8>> {
    let with = |(place, bytes): (usize, Vec<u8>)| [&[place as u8], &bytes[..]].concat();
    let plain = idx_files().into_iter().map(|(_, bytes)| bytes).enumerate().map(with);
    let zipped = idx_files().into_iter().map(|(_, bytes)| packed(&bytes)).enumerate().map(with);
    plain.chain(zipped).collect()
}

const CIFAR_IMAGES: usize = 3;

fn cifar_file() -> Vec<u8> {
    (0..CIFAR_IMAGES).flat_map(|label| [vec![label as u8], vec![100; 3072]].concat()).collect()
}

fn pictures() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/quelea-data/tests/images");
    let names = ["alpha.png", "grey.png", "palette.png", "rgb.png"];
    let names =
        names.into_iter().chain(["baseline.jpg", "cmyk.jpg", "grey.jpg", "progressive.jpg"]);
    names
        .map(|name| std::fs::read(format!("{folder}/{name}")).expect("a picture of the tests"))
        .collect()
}

/// Puts the checksums of a PNG's chunks right.
#[expect(clippy::ptr_arg, reason = "the type that all repairs have")]
fn repair_png(bytes: &mut Vec<u8>) {
    if !bytes.starts_with(b"\x89PNG") {
        return;
    }
    let mut at = 8;
    while let Some(length) = bytes.get(at..at + 4) {
        let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
        let end = at + 8 + length;
        if end + 4 > bytes.len() {
            return;
        }
        let checksum = crc32fast::hash(&bytes[at + 4..end]);
        bytes[end..end + 4].copy_from_slice(&checksum.to_be_bytes());
        at = end + 4;
    }
}

fn read_sentences(bytes: &[u8], scratch: &InputFolder) {
    let good = b"one\ntwo\n".to_vec();
    scratch.write_set(&[("train.de", good.clone()), ("train.en", good)], bytes);
    if let Ok(pairs) = SentencePairs::read(scratch.path(), "train", "de", "en") {
        assert_eq!(pairs.sources.len(), pairs.targets.len());
    }
}

fn vocabularies() -> Vec<Vec<u8>> {
    let lines =
        |lines: &str| format!("quelea byte pairs 1\norigin 300 x\n{lines}sha256 0").into_bytes();
    // Every token twice the one before it.
    let doubling: String = (258..290).map(|token| format!("{token} {token}\n")).collect();
    let mut seeds = vec![lines("119 104\n259 35\n"), lines(""), lines(&doubling)];
    seeds.iter_mut().for_each(repair_vocabulary);
    seeds
}

fn repair_vocabulary(bytes: &mut Vec<u8>) {
    let mark = b"sha256 ";
    let cut = bytes.windows(mark.len()).rposition(|window| window == mark).unwrap_or(bytes.len());
    bytes.truncate(cut);
    let sum: String = Sha256::digest(&*bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.extend_from_slice(format!("sha256 {sum}\n").as_bytes());
}

/// What the archive is to hold: three bytes.
const WANTED: ExpectedFile = ExpectedFile {
    name: "a.txt",
    bytes: 3,
    sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
};

/// Not packed: what reads it packs it, so that changes reach the headers.
fn archive() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in [("set/readme", &b"hello"[..]), ("set/a.txt", b"abc")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, content).expect("memory can be written to");
    }
    archive.into_inner().expect("memory can be written to")
}

/// Puts the checksums of the headers right, which stand every 512 bytes at most.
#[expect(clippy::ptr_arg, reason = "the type that all repairs have")]
fn repair_archive(bytes: &mut Vec<u8>) {
    let mut at = 0;
    while at + 512 <= bytes.len() && bytes[at] != 0 {
        bytes[at + 148..at + 156].fill(b' ');
        let sum: u32 = bytes[at..at + 512].iter().map(|byte| u32::from(*byte)).sum();
        bytes[at + 148..at + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        at += 1024;
    }
}

fn read_archive(bytes: &[u8], scratch: &InputFolder) {
    let folder = scratch.path().join("unpacked");
    let _ = std::fs::create_dir(&folder);
    let archive = scratch.write("archive.tar.gz", &packed(bytes));
    let _ = untrusted::archive(&archive, &folder, &[WANTED]);
    // Whatever names an archive has, nothing else is written.
    let names =
        std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    assert!(names.into_iter().all(|name| name == WANTED.name), "a file that was not asked for");
}
