//! Memory at checkpoints, counted by the allocator: a coordinator holds about one part at a time, however many
//! workers save, and a worker holds one copy of its state.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Run, coordinator, worker};
use quelea_core::message::Rank;
use quelea_core::state::{Digest, Visitor};
use quelea_core::time::Time;
use quelea_net::{Hosted, NetOptions, Observer};
use quelea_record::{CheckpointSchedule, RankCheckpoint, Record};

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: HeldAllocator = HeldAllocator;

struct HeldAllocator;

fn grown(bytes: usize) {
    let held = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for HeldAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(block, layout) }
    }
}

const WORKERS: usize = 6;
const DIMENSIONS: usize = 1_000_000;
const STEPS: u64 = 6;
/// Everything that is not a vector of the model's length.
const SMALL_BYTES: usize = 4 << 20;

/// Not a test by itself: what [`child`] runs in a process of its own, which says what it held at most.
#[test]
fn child_process() {
    let Ok(address) = std::env::var("QUELEA_TEST_COORDINATOR") else { return };
    let told = std::env::var("QUELEA_TEST_PEAK").expect("given with the address");
    worker(&address, None).expect("it takes part");
    std::fs::write(told, PEAK.load(Ordering::Relaxed).to_string()).expect("written");
    std::process::exit(0);
}

fn child(address: &str, told: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_process", "--nocapture"])
        .env("QUELEA_TEST_COORDINATOR", address)
        .env("QUELEA_TEST_PEAK", told)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// Takes parts as slowly as a disk, and sees how much is held meanwhile.
struct SlowDisk {
    save_every: u64,
    before: usize,
    parts: usize,
    part_bytes: usize,
    peak_bytes: usize,
}

impl Observer for SlowDisk {
    fn record(&mut self, _: Record) {}

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule { save_every: self.save_every, evaluations: 0, steps: STEPS }
    }

    fn checkpoint(&mut self, _: Time, _: u64, _: Rank, mut part: RankCheckpoint) {
        let vectors = part.state.vectors.values().map(|values| 4 * values.len());
        self.part_bytes = self.part_bytes.max(vectors.sum());
        let mut digest = Digest::default();
        for _ in 0..10 {
            part.state.vectors.iter_mut().for_each(|(name, values)| digest.vector(name, values));
        }
        assert_ne!(digest.0, 0);
        self.parts += 1;
        // Reports follow at the end of the run; here only states have come.
        self.peak_bytes = PEAK.load(Ordering::Relaxed).saturating_sub(self.before);
    }
}

/// A run whose workers are processes; what was seen, and what each of them held at most.
fn run(save_every: u64) -> (SlowDisk, Vec<usize>) {
    let folder =
        std::env::temp_dir().join(format!("quelea-memory-{save_every}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let told = |rank: usize| folder.join(rank.to_string());
    let run = Run { dimensions: DIMENSIONS, ..Run::of("allreduce", WORKERS).steps(STEPS) };
    let coordinator = coordinator(NetOptions::default());
    let address = coordinator.address().to_string();
    let children: Vec<Child> = (0..WORKERS).map(|rank| child(&address, &told(rank))).collect();
    let (setup, gradients) = (run.setup(), run.gradients());
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let mut disk = SlowDisk { save_every, before, parts: 0, part_bytes: 0, peak_bytes: 0 };
    let hosted = Hosted { workers: Vec::new() };
    coordinator.run(run.job(), &setup, &gradients, &hosted, &mut disk).expect("it ends well");
    for mut child in children {
        assert!(child.wait().expect("waited for").success());
    }
    let read = |rank| std::fs::read_to_string(told(rank)).expect("said").parse().expect("a number");
    let peaks = (0..WORKERS).map(read).collect();
    std::fs::remove_dir_all(&folder).expect("it is there");
    (disk, peaks)
}

/// Of the default allocator of the other tests nothing is counted: this program has one run at a time.
#[test]
fn a_coordinator_holds_about_one_part_at_a_time_and_a_worker_one_copy_of_its_state() {
    let (without, calm) = run(0);
    assert_eq!(without.parts, 0);
    let (with, saving) = run(STEPS / 2);
    assert!(with.parts >= WORKERS, "{} parts", with.parts);
    // What has arrived and what was made of it, and half of one more where memory grows.
    let bound = 5 * with.part_bytes / 2 + SMALL_BYTES;
    println!("coordinator: {} of a part of {}, bound {bound}", with.peak_bytes, with.part_bytes);
    assert!(
        with.peak_bytes <= bound,
        "{} bytes held, parts have {}",
        with.peak_bytes,
        with.part_bytes
    );
    assert!(bound < WORKERS * with.part_bytes, "the bound says something");
    for (rank, (calm, saving)) in calm.iter().zip(&saving).enumerate() {
        println!("worker {rank}: at most {calm} without checkpoints, {saving} with");
        assert!(
            *saving <= calm + with.part_bytes + SMALL_BYTES,
            "worker {rank}: {calm} then {saving}"
        );
    }
}
