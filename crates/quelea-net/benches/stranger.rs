//! What a thousand connections of somebody without a token cost a run: the median time of a step with and
//! without them, runs taken in turns.
//!
//! Two workers average 1 MiB over TLS after computing for 20 ms. The stranger sends noise, half a handshake,
//! another protocol, or nothing, while they do.

#[path = "../tests/common/mod.rs"]
mod runs;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quelea_core::node::Loan;
use quelea_core::problems::{Computed, GradientSource, Problem};
use quelea_net::{Coordinator, Gradients, Hosted, NetOptions, RunSecret, Security, join};
use quelea_record::RecordKind;
use runs::{Run, Watch};

const VISITS: usize = 1000;
const COMPUTE: Duration = Duration::from_millis(20);
const ELEMENTS: usize = 1 << 18;

/// Gradients that take a while and no processor.
struct Slow(Box<dyn GradientSource>);

impl GradientSource for Slow {
    fn gradient(&mut self, loan: &mut Loan, ready: &mut dyn FnMut(usize)) -> Computed {
        std::thread::sleep(COMPUTE);
        self.0.gradient(loan, ready)
    }

    fn operations(&self) -> u64 {
        1 << 40
    }
}

/// Connects again and again until `is_over`; how often.
fn strangers(address: SocketAddr, is_over: &AtomicBool) -> usize {
    let (mut visits, mut silent) = (0, Vec::new());
    while !is_over.load(Ordering::Relaxed) && visits < VISITS {
        if let Ok(mut stream) = TcpStream::connect(address) {
            let said: &[u8] = match visits % 4 {
                0 => &[0x5a; 2000],
                1 => b"GET / HTTP/1.1\r\n\r\n",
                2 => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                _ => &[],
            };
            let _ = stream.write_all(said);
            silent.push(stream);
            if silent.len() > 200 {
                silent.remove(0);
            }
        }
        visits += 1;
        std::thread::sleep(Duration::from_millis(3));
    }
    visits
}

/// The median time of a step, in seconds, and how many strangers came.
fn step_seconds(steps: u64, disturbed: bool) -> (f64, usize) {
    let run = Run { dimensions: ELEMENTS, bucket_bytes: 0, ..Run::of("d-psgd", 2) }.steps(steps);
    let secret = RunSecret::random().expect("random numbers");
    let options = NetOptions { security: Security::Secret(secret), ..NetOptions::default() };
    let coordinator = Coordinator::bind("127.0.0.1:0", options.clone()).expect("a free port");
    let (address, setup) = (coordinator.address(), run.setup());
    let problem: Arc<dyn Problem> = Arc::new(run.problem());
    let gradients = || {
        let problem = Arc::clone(&problem);
        Gradients::Sources(Box::new(move |rank| Box::new(Slow(problem.source(rank)))))
    };
    let (mut watch, is_over) = (Watch::new(), AtomicBool::new(false));
    let visits = std::thread::scope(|scope| {
        let (is_over, options, setup, gradients) = (&is_over, &options, &setup, &gradients);
        scope.spawn(move || {
            let place = address.to_string();
            join(&place, Some(1), options, &mut |_| Ok((setup.clone(), gradients())))
                .expect("it takes part")
        });
        let visiting = scope.spawn(move || if disturbed { strangers(address, is_over) } else { 0 });
        let hosted = Hosted { workers: vec![0] };
        coordinator
            .run(run.job(), setup, &gradients(), &hosted, &mut watch)
            .expect("it is not disturbed");
        is_over.store(true, Ordering::Relaxed);
        visiting.join().expect("no panic")
    });
    let is_step = |kind: &RecordKind| matches!(kind, RecordKind::Step { .. });
    let ends = watch.records.iter().filter(|record| record.rank == 0 && is_step(&record.event));
    let ends: Vec<f64> = ends.map(|record| record.t).collect();
    let mut steps: Vec<f64> = ends.windows(2).map(|two| two[1] - two[0]).collect();
    (median(&mut steps), visits)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let is = |flag: &str| std::env::args().any(|argument| argument == flag);
    let (steps, rounds) = if is("--test") { (5, 1) } else { (150, 5) };
    let (mut calm, mut disturbed, mut visits) = (Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        calm.push(step_seconds(steps, false).0);
        let (seconds, came) = step_seconds(steps, true);
        disturbed.push(seconds);
        visits = visits.max(came);
    }
    let (calm, disturbed) = (median(&mut calm) * 1e3, median(&mut disturbed) * 1e3);
    let ratio = disturbed / calm;
    if is("--json") {
        println!(
            "{{\"name\": \"step with {visits} strangers, without = 1\", \"goal\": 1.02, \
             \"ratio\": {ratio:.4}, \"ms\": {disturbed:.3}, \"ms without\": {calm:.3}}}"
        );
    } else {
        println!("step of two workers over TLS, medians of {rounds} runs in turns");
        println!("  alone                 {calm:8.3} ms");
        println!("  with {visits} strangers   {disturbed:8.3} ms   ratio {ratio:.4}");
    }
}
