//! Folders of pictures, good and bad.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use quelea_core::random::Rng;
use quelea_data::augment::{Augmentation, ImageBatches};
use quelea_data::check::check_pictures;
use quelea_data::images::{Crop, FolderOptions, ImageShape, folder};
use quelea_data::loader::{Loader, LoaderPool};
use tempfile::TempDir;

const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/images");
const SMALL: FolderOptions = FolderOptions { side: 16, resized: 20 };

fn put(root: &Path, place: &str, picture: &str) {
    let path = root.join(place);
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::copy(Path::new(PICTURES).join(picture), path).expect("copied");
}

fn tree() -> TempDir {
    let root = tempfile::tempdir().expect("a folder");
    for (place, picture) in [
        ("train/cat/b.png", "rgb.png"),
        ("train/cat/a.JPEG", "baseline.jpg"),
        ("train/bird/1.jpg", "progressive.jpg"),
        ("train/bird/really-a-png.jpg", "palette.png"),
        ("val/cat/1.jpg", "grey.jpg"),
        ("val/bird/1.jpg", "cmyk.jpg"),
    ] {
        put(root.path(), place, picture);
    }
    fs::write(root.path().join("train/cat/notes.txt"), "no picture").expect("written");
    fs::write(root.path().join("train/.DS_Store"), "no class").expect("written");
    root
}

fn refusal(root: &TempDir) -> String {
    folder(root.path(), SMALL).expect_err("refused").to_string()
}

#[test]
fn classes_and_files_are_in_the_order_of_their_names() {
    let root = tree();
    let split = folder(root.path(), SMALL).expect("good");
    assert_eq!(split.train.classes(), ["bird", "cat"]);
    assert_eq!((split.train.labels(), split.test.labels()), (vec![0, 0, 1, 1], vec![0, 1]));
    assert_eq!(split.train.shape(), ImageShape { channels: 3, height: 16, width: 16 });
    let mut out = vec![0; 3 * 16 * 16];
    for index in 0..4 {
        split.train.pixels(index, Crop::Centre, &mut out).expect("good");
        // All are of the same scene: its blue is a checkerboard, its green rises to the right.
        let green = &out[256..512];
        assert!(green[8 * 16] < green[8 * 16 + 15], "image {index}");
    }
}

#[test]
fn random_parts_repeat_with_their_stream_and_differ_between_streams() {
    let root = tree();
    let split = folder(root.path(), SMALL).expect("good");
    let part = |seed| {
        let mut out = vec![0; 3 * 16 * 16];
        let mut rng = Rng::new(seed, "crop", 0);
        split.train.pixels(3, Crop::Random(&mut rng), &mut out).expect("good");
        out
    };
    assert_eq!(part(1), part(1));
    assert_ne!(part(1), part(2));
}

#[test]
fn a_loader_gives_pictures_and_names_the_one_that_is_broken() {
    let root = tree();
    let pool = LoaderPool::new(2);
    let loader = |root: &TempDir| {
        let train = folder(root.path(), SMALL).expect("good").train;
        let batches = ImageBatches::shuffled(train, (0..4).collect(), 4, 1, 0);
        Loader::new(&pool, batches.varied(Augmentation::IMAGENET), 2)
    };
    let mut good = loader(&root);
    let sums: Vec<f32> = (0..4)
        .map(|step| {
            let batch = good.batch(step).expect("good");
            assert_eq!((batch.inputs.len(), batch.labels.len()), (4 * 768, 4));
            batch.inputs.iter().sum()
        })
        .collect();
    assert_eq!(sums[2], loader(&root).batch(2).expect("good").inputs.iter().sum::<f32>());
    assert_ne!(sums[0], sums[1]);
    let path = root.path().join("train/bird/1.jpg");
    let bytes = fs::read(&path).expect("a file");
    for (broken, said) in [
        (&bytes[..bytes.len() / 2], "ends too early"),
        (&b"GIF89a"[..], "is neither JPEG nor PNG"),
        (&b"\x89PNG\r\n\x1a\n\0\0"[..], "is damaged"),
        (&b"\xff\xd8\xff\xd9"[..], "is damaged"),
        (&b""[..], "is neither JPEG nor PNG"),
    ] {
        fs::write(&path, broken).expect("written");
        let error = loader(&root).batch(0).expect_err("refused").to_string();
        assert!(error.contains("bird/1.jpg") && error.contains(said), "{error}");
    }
    fs::remove_file(&path).expect("there");
    let train = folder(root.path(), SMALL).expect("good").train;
    fs::remove_file(root.path().join("train/bird/really-a-png.jpg")).expect("there");
    let error = train.pixels(0, Crop::Centre, &mut [0; 768]).expect_err("gone").to_string();
    assert!(error.contains("cannot read") && error.contains("really-a-png.jpg"), "{error}");
}

#[test]
fn checking_a_folder_names_every_broken_picture() {
    let root = tree();
    let count = AtomicUsize::new(0);
    let progress = || {
        count.fetch_add(1, Ordering::Relaxed);
    };
    let (all, broken) = check_pictures(root.path(), &progress).expect("good");
    assert_eq!((all, broken.len(), count.load(Ordering::Relaxed)), (6, 0, 6));
    fs::write(root.path().join("val/cat/1.jpg"), "no picture").expect("written");
    fs::write(root.path().join("train/bird/1.jpg"), b"\xff\xd8").expect("written");
    let (_, broken) = check_pictures(root.path(), &|| {}).expect("names only");
    let said: Vec<String> = broken.iter().map(ToString::to_string).collect();
    assert!(said.len() == 2 && said[0].contains("train/bird/1.jpg: ends too early"), "{said:?}");
    assert!(said[1].contains("val/cat/1.jpg: is neither JPEG nor PNG"), "{said:?}");
}

#[test]
fn a_picture_that_claims_to_be_huge_is_refused_before_memory_is_taken() {
    let root = tree();
    let path = root.path().join("train/bird/really-a-png.jpg");
    let mut encoded = Vec::new();
    let mut encoder = png::Encoder::new(&mut encoded, 16_384, 16_384);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    drop(encoder.write_header().expect("memory"));
    fs::write(&path, encoded).expect("written");
    let train = folder(root.path(), SMALL).expect("names only").train;
    let mut out = [0; 768];
    let error = train.pixels(1, Crop::Centre, &mut out).expect_err("refused").to_string();
    assert!(error.contains("is 16384×16384; at most"), "{error}");
}

#[test]
fn folders_without_what_is_needed_are_refused() {
    let root = tree();
    fs::create_dir_all(root.path().join("train/dog")).expect("made");
    let error = refusal(&root);
    assert!(error.contains("train/dog holds no JPEG or PNG file"), "{error}");
    fs::remove_dir(root.path().join("train/dog")).expect("there");
    put(root.path(), "val/whale/1.jpg", "grey.jpg");
    let error = refusal(&root);
    assert!(error.contains("val/whale: is a class that the training images do not"), "{error}");
    fs::rename(root.path().join("val"), root.path().join("evaluation")).expect("there");
    let error = refusal(&root);
    assert!(error.contains("holds no folder val, validation or test"), "{error}");
    let empty = tempfile::tempdir().expect("a folder");
    let error = refusal(&empty);
    assert!(error.contains("cannot read") && error.contains("train"), "{error}");
    fs::create_dir(empty.path().join("train")).expect("made");
    let error = refusal(&empty);
    assert!(error.contains("train holds no subfolder; one for each class"), "{error}");
}
