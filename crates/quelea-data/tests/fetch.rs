//! Downloads from a server on this machine that behaves well, badly, and not at all.

mod support;

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use quelea_core::random::Rng;
use quelea_data::catalogue::{DataSet, Download, ExpectedFile};
use quelea_data::fetch::{Fetch, FetchError, Told, fetch};
use sha2::{Digest, Sha256};
use support::server::{Server, answer, file};
use tempfile::TempDir;

/// Some content that does not pack well.
fn content() -> Vec<u8> {
    let mut rng = Rng::new(1, "content", 0);
    (0..100_000).map(|_| rng.next_u64() as u8).collect()
}

fn packed(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory")
}

fn leak<T>(items: Vec<T>) -> &'static [T] {
    Box::leak(items.into_boxed_slice())
}

fn described(name: &'static str, content: &[u8]) -> ExpectedFile {
    let sum: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    ExpectedFile { name, bytes: content.len() as u64, sha256: Box::leak(sum.into_boxed_str()) }
}

fn data_set(address: &'static str, is_archive: bool, files: Vec<ExpectedFile>) -> &'static DataSet {
    let downloads = leak(vec![Download { address, is_archive, files: leak(files) }]);
    Box::leak(Box::new(DataSet { name: "test", summary: "", terms: "", downloads }))
}

/// One packed file, `numbers.gz`.
fn numbers() -> &'static DataSet {
    data_set("http://original.example/numbers.gz", false, vec![described("numbers", &content())])
}

fn from(server: &Server, folder: &TempDir) -> Fetch {
    Fetch { to: folder.path().join("new/test"), mirror: Some(server.url()), pause: Duration::ZERO }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn a_file_comes_with_progress_and_is_not_asked_for_twice() {
    let folder = folder();
    let server = Server::new(|_, asked| file(&packed(&content()), asked.from, usize::MAX));
    let options = from(&server, &folder);
    let (mut bytes, mut totals) = (0, Vec::new());
    fetch(numbers(), &options, &mut |told| match told {
        Told::Bytes(more) => bytes += more,
        Told::Begun { name, from, total } => totals.push((name.to_string(), from, total)),
        _ => {}
    })
    .expect("good");
    let len = packed(&content()).len() as u64;
    assert_eq!((bytes, totals), (len, vec![("numbers.gz".to_string(), 0, Some(len))]));
    assert_eq!(names(&options.to), ["numbers.gz"]);
    assert_eq!(std::fs::read(options.to.join("numbers.gz")).expect("a file"), packed(&content()));
    let mut present = Vec::new();
    fetch(numbers(), &options, &mut |told| present.push(format!("{told:?}"))).expect("good");
    assert_eq!(present, ["Present(\"numbers.gz\")"]);
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn a_lost_connection_is_taken_up_where_it_ended() {
    let folder = folder();
    // Every answer is cut off after 30,000 bytes.
    let server = Server::new(|_, asked| file(&packed(&content()), asked.from, 30_000));
    fetch(numbers(), &from(&server, &folder), &mut |_| {}).expect("good");
    let begins: Vec<Option<usize>> = server.asked().iter().map(|asked| asked.from).collect();
    assert_eq!(begins[..3], [None, Some(30_000), Some(60_000)]);
    assert_eq!(names(&folder.path().join("new/test")), ["numbers.gz"]);
}

#[test]
fn another_command_goes_on_where_the_first_was_ended() {
    let folder = folder();
    let server = Server::new(|_, asked| file(&packed(&content()), asked.from, usize::MAX));
    let options = from(&server, &folder);
    std::fs::create_dir_all(&options.to).expect("a folder");
    std::fs::write(options.to.join("numbers.gz.part"), &packed(&content())[..12_345])
        .expect("part");
    let mut begun = None;
    let tell = &mut |told: Told<'_>| {
        if let Told::Begun { from, .. } = told {
            begun = Some(from);
        }
    };
    fetch(numbers(), &options, tell).expect("good");
    assert_eq!((begun, server.asked()[0].from), (Some(12_345), Some(12_345)));
    // A part that was whole already, and one that is longer than the file.
    for extra in [0, 7] {
        std::fs::remove_file(options.to.join("numbers.gz")).expect("there");
        let part = [packed(&content()), vec![0; extra]].concat();
        std::fs::write(options.to.join("numbers.gz.part"), part).expect("a part");
        fetch(numbers(), &options, &mut |_| {}).expect("good");
        assert_eq!(names(&options.to), ["numbers.gz"]);
    }
}

#[test]
fn a_server_without_ranges_sends_everything_again() {
    let folder = folder();
    let server = Server::new(|number, _| {
        file(&packed(&content()), None, if number < 2 { 30_000 } else { usize::MAX })
    });
    fetch(numbers(), &from(&server, &folder), &mut |_| {}).expect("good");
    assert_eq!(names(&folder.path().join("new/test")), ["numbers.gz"]);
}

#[test]
fn redirects_are_followed_with_the_range() {
    let folder = folder();
    let server = Server::new(|_, asked| match asked.path.as_str() {
        "/numbers.gz" => answer("302 Found", &[("Location", "/moved/here".into())], b""),
        _ => file(&packed(&content()), asked.from, 60_000),
    });
    fetch(numbers(), &from(&server, &folder), &mut |_| {}).expect("good");
    let there: Vec<Option<usize>> = server
        .asked()
        .into_iter()
        .filter(|asked| asked.path == "/moved/here")
        .map(|asked| asked.from)
        .collect();
    assert_eq!(there, [None, Some(60_000)]);
}

#[test]
fn wrong_content_is_refused_and_thrown_away() {
    let mut other = content();
    other[5] ^= 1;
    let longer = [content(), vec![1]].concat();
    let mut broken = packed(&content());
    let middle = broken.len() / 2;
    broken[middle] ^= 0xff;
    let bodies = [
        (packed(&other), "has the SHA-256"),
        (packed(&longer), "holds 100001 bytes, not 100000"),
        (packed(&content())[..50_000].to_vec(), "cut off"),
        (broken, ""),
        (b"<html>not found</html>".to_vec(), "holds 22 bytes"),
        (vec![0; 3_000_000], "more than the data set has"),
    ];
    for (body, said) in bodies {
        let folder = folder();
        let server = Server::new(move |_, asked| file(&body, asked.from, usize::MAX));
        let options = from(&server, &folder);
        let error = fetch(numbers(), &options, &mut |_| {}).expect_err("refused");
        assert!(matches!(error, FetchError::Wrong { .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
        assert!(error.to_string().contains("/numbers.gz"), "{error}");
        assert!(names(&options.to).is_empty());
    }
}

#[test]
fn a_server_that_says_no_is_quoted() {
    for (status, code) in [("404 Not Found", 404), ("403 Forbidden", 403)] {
        let folder = folder();
        let server = Server::new(move |_, _| answer(status, &[], b"no"));
        let error = fetch(numbers(), &from(&server, &folder), &mut |_| {}).expect_err("refused");
        assert!(matches!(error, FetchError::Status { status, .. } if status == code), "{error}");
        assert_eq!(server.asked().len(), 1);
    }
}

#[test]
fn a_server_that_fails_again_and_again_is_given_up_and_the_part_is_kept() {
    let folder = folder();
    let server = Server::new(|number, asked| match number {
        0 => file(&packed(&content()), asked.from, 10_000),
        _ => answer("503 Service Unavailable", &[], b""),
    });
    let options = from(&server, &folder);
    let error = fetch(numbers(), &options, &mut |_| {}).expect_err("given up");
    assert!(matches!(error, FetchError::Lost { .. }), "{error}");
    let words = error.to_string();
    assert!(words.contains("503") && words.contains("10000 bytes have come"), "{words}");
    assert_eq!(server.asked().len(), 5);
    let part = std::fs::metadata(options.to.join("numbers.gz.part")).expect("kept");
    assert_eq!(part.len(), 10_000);
}

#[test]
fn nobody_at_the_address_is_an_error() {
    let folder = folder();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let options = Fetch {
        to: folder.path().to_path_buf(),
        mirror: Some(format!("http://{free}")),
        pause: Duration::ZERO,
    };
    let error = fetch(numbers(), &options, &mut |_| {}).expect_err("nobody there");
    assert!(matches!(error, FetchError::Lost { bytes: 0, .. }), "{error}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_wrong_file_of_the_same_name_is_replaced_and_one_in_the_way_is_named() {
    let folder = folder();
    let server = Server::new(|_, asked| file(&packed(&content()), asked.from, usize::MAX));
    let options = from(&server, &folder);
    std::fs::create_dir_all(&options.to).expect("made");
    std::fs::write(options.to.join("numbers.gz"), "wrong").expect("written");
    fetch(numbers(), &options, &mut |_| {}).expect("good");
    assert_eq!(std::fs::read(options.to.join("numbers.gz")).expect("a file"), packed(&content()));
    std::fs::write(options.to.join("numbers"), "wrong").expect("written");
    let error = fetch(numbers(), &options, &mut |_| {}).expect_err("refused").to_string();
    assert!(error.contains("test/numbers: is not what it should be"), "{error}");
}

#[test]
fn two_downloads_do_not_write_the_same_file() {
    let folder = folder();
    let part = std::fs::File::create(folder.path().join("numbers.gz.part")).expect("a file");
    part.lock().expect("nobody else");
    let options = Fetch {
        to: folder.path().to_path_buf(),
        mirror: Some("http://127.0.0.1:9".into()),
        pause: Duration::ZERO,
    };
    let error = fetch(numbers(), &options, &mut |_| {}).expect_err("busy");
    assert!(error.to_string().contains("another process"), "{error}");
}

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.as_gnu_mut().expect("gnu").name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, *content).expect("memory");
    }
    packed(&builder.into_inner().expect("memory"))
}

#[test]
fn an_archive_is_unpacked_and_only_what_the_table_names() {
    let set = data_set(
        "http://original.example/all.tar.gz",
        true,
        vec![described("a.bin", b"first"), described("b.bin", b"second")],
    );
    let good: [(&str, &[u8]); 4] = [
        ("batches/a.bin", b"first"),
        ("batches/readme.html", b"hello"),
        ("../../escape.bin", b"evil"),
        ("../b.bin", b"second"),
    ];
    let folder = folder();
    let body = archive(&good);
    let server = Server::new(move |_, asked| file(&body, asked.from, usize::MAX));
    let options = from(&server, &folder);
    fetch(set, &options, &mut |_| {}).expect("good");
    assert_eq!(names(&options.to), ["a.bin", "b.bin"]);
    assert_eq!(std::fs::read(options.to.join("b.bin")).expect("a file"), b"second");
    assert_eq!(names(folder.path()), ["new"]);
}

#[test]
fn an_archive_with_a_wrong_a_missing_or_a_long_file_is_refused() {
    let set = data_set(
        "http://original.example/all.tar.gz",
        true,
        vec![described("a.bin", b"first"), described("b.bin", b"second")],
    );
    let whole = archive(&[("a.bin", b"first"), ("b.bin", &[7; 4000])]);
    let bodies = [
        (archive(&[("a.bin", b"first"), ("b.bin", b"secret")]), "b.bin: has the SHA-256"),
        (archive(&[("a.bin", b"first")]), "holds no b.bin"),
        (archive(&[("a.bin", b"first"), ("b.bin", b"secondly")]), "b.bin: holds 7 bytes, not 6"),
        (whole[..whole.len() - 20].to_vec(), ""),
        (b"not an archive".to_vec(), ""),
    ];
    for (body, said) in bodies {
        let folder = folder();
        let server = Server::new(move |_, asked| file(&body, asked.from, usize::MAX));
        let options = from(&server, &folder);
        let error = fetch(set, &options, &mut |_| {}).expect_err("refused").to_string();
        assert!(error.contains(said) && error.contains("thrown away"), "{error}");
        let left = names(&options.to);
        assert!(left.is_empty() || left == ["a.bin"], "{left:?}");
    }
}
