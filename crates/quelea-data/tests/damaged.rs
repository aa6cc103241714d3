//! Files that are cut off, of another kind, or lie about their length: each is refused with its
//! path and what is wrong.

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use lzma_rust2::{XzOptions, XzWriter};
use quelea_data::error::DataError;
use quelea_data::images::{Crop, Split, cifar10, idx};
use quelea_data::text::{SentencePairs, lines, plain};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory")
}

fn xz(content: &[u8]) -> Vec<u8> {
    let mut encoder = XzWriter::new(Vec::new(), XzOptions::with_preset(0)).expect("memory");
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory")
}

fn header(magic: u32, sizes: &[u32]) -> Vec<u8> {
    std::iter::once(&magic).chain(sizes).flat_map(|word| word.to_be_bytes()).collect()
}

fn images(count: u32) -> Vec<u8> {
    let pixels = (0..count * 6).map(|k| k as u8).collect();
    [header(0x803, &[count, 2, 3]), pixels].concat()
}

fn labels(labels: &[u8]) -> Vec<u8> {
    [header(0x801, &[labels.len() as u32]), labels.to_vec()].concat()
}

/// A folder with four good files, of which one is replaced.
fn with(name: &str, bytes: &[u8]) -> Result<Split, DataError> {
    let folder = folder();
    let good = [
        ("train-images-idx3-ubyte", images(3)),
        ("train-labels-idx1-ubyte", labels(&[0, 1, 2])),
        ("t10k-images-idx3-ubyte.gz", gzip(&images(2))),
        ("t10k-labels-idx1-ubyte.xz", xz(&labels(&[2, 0]))),
    ];
    for (file, content) in good {
        if file.trim_end_matches(".gz").trim_end_matches(".xz") != name {
            fs::write(folder.path().join(file), content).expect("written");
        }
    }
    fs::write(folder.path().join(name), bytes).expect("written");
    idx(folder.path())
}

fn refusal(name: &str, bytes: &[u8]) -> String {
    let error = with(name, bytes).expect_err("refused").to_string();
    assert!(error.contains(name), "{error}");
    error
}

#[test]
fn plain_gzip_and_xz_files_are_read_whatever_their_names_are() {
    for bytes in [images(3), gzip(&images(3)), xz(&images(3))] {
        let split = with("train-images-idx3-ubyte", &bytes).expect("good");
        let mut out = [0; 6];
        split.train.pixels(2, Crop::Centre, &mut out).expect("in memory");
        assert_eq!((split.train.label(2), out), (2, [12, 13, 14, 15, 16, 17]));
        assert_eq!((split.test.len(), split.test.classes().len()), (2, 3));
    }
}

#[test]
fn images_that_are_cut_off_or_lie_are_refused() {
    let name = "train-images-idx3-ubyte";
    let whole = images(3);
    assert!(refusal(name, &whole[..30]).contains("ends 4 bytes too early"));
    assert!(refusal(name, &whole[..10]).contains("ends too early"));
    assert!(refusal(name, b"").contains("ends too early"));
    assert!(refusal(name, &[&whole[..], &[0]].concat()).contains("longer than its header"));
    let packed = gzip(&whole);
    for cut in [1, 5, 12, packed.len() - 9] {
        assert!(refusal(name, &packed[..packed.len() - cut]).contains("too early"), "{cut}");
    }
    let mut broken = packed.clone();
    let sum = broken.len() - 6;
    broken[sum] ^= 1;
    assert!(refusal(name, &broken).contains("is damaged"));
    let packed = xz(&whole);
    assert!(refusal(name, &packed[..packed.len() / 2]).contains("too early"));
    let mut broken = packed.clone();
    broken[packed.len() / 2] ^= 0xff;
    refusal(name, &broken);
    assert!(refusal(name, &labels(&[1, 2])).contains("is no IDX file of images"));
    assert!(refusal(name, b"PK\x03\x04 something").contains("is no IDX file of images"));
    assert!(refusal(name, &header(0x803, &[0, 2, 3])).contains("holds 0 images"));
    // Four thousand million images: refused before memory is taken for them.
    assert!(refusal(name, &header(0x803, &[u32::MAX, 28, 28])).contains("holds 4294967295 images"));
    assert!(refusal(name, &header(0x803, &[3, 0, 3])).contains("are 0×3"));
    assert!(refusal(name, &header(0x803, &[3, u32::MAX, u32::MAX])).contains("sides of 1 to"));
    assert!(refusal(name, &header(0x803, &[10_000_000, 1024, 1024])).contains("too many"));
    assert!(refusal(name, &header(0x803, &[1_000_000, 28, 28])).contains("too early"));
}

#[test]
fn images_and_labels_must_go_together() {
    let error = refusal("train-labels-idx1-ubyte", &labels(&[1]));
    assert!(error.contains("holds 1 labels, but") && error.contains("holds 3 images"), "{error}");
    let other = [header(0x803, &[2, 3, 3]), vec![0; 18]].concat();
    assert!(refusal("t10k-images-idx3-ubyte", &other).contains("holds images of 3×3, but"));
    let folder = folder();
    let error = idx(folder.path()).expect_err("nothing there").to_string();
    assert!(error.contains("holds no train-images-idx3-ubyte (nor"), "{error}");
}

#[test]
fn cifar_batches_are_checked_record_by_record() {
    let folder = folder();
    let write = |name: &str, bytes: &[u8]| {
        fs::write(folder.path().join(name), bytes).expect("written");
    };
    let error = cifar10(folder.path()).expect_err("nothing there").to_string();
    assert!(error.contains("holds no data_batch_1.bin"), "{error}");
    (1..=5).for_each(|number| write(&format!("data_batch_{number}.bin"), b""));
    write("test_batch.bin", b"");
    let error = cifar10(folder.path()).expect_err("empty").to_string();
    assert!(error.contains("data_batch_1.bin: ends too early"), "{error}");
    let mut records = vec![1; 10 * 3073];
    records[3 * 3073] = 10;
    write("data_batch_1.bin", &records);
    let error = cifar10(folder.path()).expect_err("a wrong label").to_string();
    assert!(error.contains("image 3 has label 10; CIFAR-10 has labels of 0 to 9"), "{error}");
}

fn pairs(folder: &Path, english: &[u8], german: &[u8]) -> Result<SentencePairs, DataError> {
    fs::write(folder.join("train.en"), english).expect("written");
    fs::write(folder.join("train.de.gz"), gzip(german)).expect("written");
    SentencePairs::read(folder, "train", "en", "de")
}

#[test]
fn sentences_must_be_text_and_as_many_in_both_languages() {
    let folder = folder();
    let good = pairs(folder.path(), b"One\nTwo \x0b\r\n\n", "Eins\nZwei\nDrei".as_bytes());
    assert_eq!(good.expect("good").sources, ["One", "Two \u{b}", ""]);
    let error = pairs(folder.path(), b"One\nTwo\n", b"Eins\n").expect_err("refused").to_string();
    assert!(error.contains("train.de.gz: has 1 lines, but"), "{error}");
    let error = pairs(folder.path(), b"One\nTw\xff\n", b"Eins\n").expect_err("refused").to_string();
    assert!(error.contains("train.en: line 2 is not UTF-8 text"), "{error}");
    let error = pairs(folder.path(), b"", b"").expect_err("refused").to_string();
    assert!(error.contains("train.en: is empty"), "{error}");
    let error = lines(&folder.path().join("train.fr")).expect_err("not there").to_string();
    assert!(error.contains("cannot read") && error.contains("train.fr"), "{error}");
    let error = plain(&folder.path().join("train.en")).expect_err("too short").to_string();
    assert!(error.contains("holds 0 bytes: too few"), "{error}");
}
