//! How fast batches are made: `cargo bench -p quelea-data` prints rates; they decide nothing.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use quelea_core::random::Rng;
use quelea_data::augment::{Augmentation, ImageBatch, ImageBatches};
use quelea_data::images::{FolderOptions, ImageShape, Images, InMemory, cifar10, folder, idx};
use quelea_data::loader::{BatchSource, Loader, LoaderPool};

fn main() {
    augmentation();
    ahead();
    pictures();
    files();
}

fn shared(name: &str) -> Option<std::path::PathBuf> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let root = std::env::var_os("QUELEA_TEST_DATA").map_or(root.into(), std::path::PathBuf::from);
    Some(root.join(name)).filter(|path| path.is_dir())
}

/// Images of the size of CIFAR's.
fn random_images(count: usize) -> Arc<dyn Images> {
    let shape = ImageShape { channels: 3, height: 32, width: 32 };
    let mut rng = Rng::new(1, "bench", 0);
    let pixels = (0..count * shape.len()).map(|_| rng.next_u64() as u8).collect();
    let labels = (0..count).map(|k| (k % 10) as u8).collect();
    Arc::new(InMemory::new(shape, (0..10).map(|k| k.to_string()).collect(), labels, pixels))
}

fn batches(images: &Arc<dyn Images>, batch: usize, how: Augmentation) -> ImageBatches {
    let all = (0..images.len() as u32).collect();
    ImageBatches::shuffled(Arc::clone(images), all, batch, 1, 0).varied(how)
}

fn augmentation() {
    let images = random_images(50_000);
    for (name, how) in [("normalise", Augmentation::NONE), ("crop, flip", Augmentation::CIFAR)] {
        let source = batches(&images, 32, how);
        let mut batch = ImageBatch::default();
        source.fill(0, &mut batch).expect("in memory");
        let (began, steps) = (Instant::now(), 3000);
        for step in 0..steps {
            source.fill(step, &mut batch).expect("in memory");
            black_box(&batch);
        }
        let rate = (steps * 32) as f64 / began.elapsed().as_secs_f64();
        println!("3×32×32, {name:10}  {rate:>9.0} images/s on one thread, batch 32");
    }
}

/// How long a step of 2 ms of work takes with its batch. (How much of it is spent waiting says
/// little on a busy machine: waking a thread is when the system takes the core away.)
fn ahead() {
    let images = random_images(50_000);
    let pool = LoaderPool::new(1);
    let mut loaders = [("none", None), ("made by the step", Some(0)), ("made ahead", Some(1))].map(
        |(name, ahead)| {
            let source = || batches(&images, 32, Augmentation::CIFAR);
            (name, ahead.map(|ahead| Loader::new(&pool, source(), ahead)), 0.0)
        },
    );
    // In turn, so that a busy machine is equally unfair to all.
    let (rounds, steps) = (40, 20);
    for round in 0..rounds {
        for (_, loader, seconds) in &mut loaders {
            let began = Instant::now();
            for step in round * steps..(round + 1) * steps {
                if let Some(loader) = loader {
                    black_box(loader.batch(step).expect("in memory"));
                }
                black_box((0..WORK).fold(1u64, |x, k| black_box(x.wrapping_mul(k | 1))));
            }
            *seconds += began.elapsed().as_secs_f64();
        }
    }
    for (name, _, seconds) in &loaders {
        let step = seconds * 1e3 / (rounds * steps) as f64;
        println!("a step with a batch of 32, {name:17}  {step:.3} ms");
    }
}

/// Multiplications that take about 2 ms.
const WORK: u64 = 1_000_000;

/// A photograph of 500×375, as in ImageNet, decoded and cut to 224×224.
fn pictures() {
    let root = std::env::temp_dir().join(format!("quelea-bench-{}", std::process::id()));
    let Some(photograph) = std::env::var_os("QUELEA_BENCH_JPEG") else {
        println!("set QUELEA_BENCH_JPEG to a photograph to measure decoding");
        return;
    };
    for part in ["train", "val"] {
        std::fs::create_dir_all(root.join(part).join("a")).expect("made");
        for number in 0..8 {
            let to = root.join(part).join("a").join(format!("{number}.jpg"));
            std::fs::copy(&photograph, to).expect("copied");
        }
    }
    let bytes = std::fs::metadata(&photograph).expect("a file").len();
    let train = folder(&root, FolderOptions::default()).expect("good").train;
    let source = batches(&train, 8, Augmentation::IMAGENET);
    let mut batch = ImageBatch::default();
    let (began, steps) = (Instant::now(), 20);
    for step in 0..steps {
        source.fill(step, &mut batch).expect("good");
    }
    let rate = (steps * 8) as f64 / began.elapsed().as_secs_f64();
    let megabytes = rate * bytes as f64 / 1e6;
    println!(
        "JPEG of {bytes} bytes to 224×224  {rate:.0} images/s, {megabytes:.1} MB/s on one thread"
    );
    let _ = std::fs::remove_dir_all(&root);
}

fn files() {
    let time = |name: &str, bytes: f64, read: &dyn Fn(&Path)| {
        let Some(path) = shared(name) else { return };
        let began = Instant::now();
        read(&path);
        let seconds = began.elapsed().as_secs_f64();
        println!("{name} unpacked in {seconds:.2} s, {:.0} MB/s", bytes / 1e6 / seconds);
    };
    time("fashion-mnist", 54.95e6, &|path| drop(idx(path).expect("whole")));
    time("cifar10", 184.38e6, &|path| drop(cifar10(path).expect("whole")));
}
