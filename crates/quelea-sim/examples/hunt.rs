//! Temporary.
use quelea_sim::chaos::ChaosScenario;
use std::panic::{AssertUnwindSafe, catch_unwind};
fn main() {
    let a: Vec<u64> = std::env::args().skip(1).map(|x| x.parse().unwrap()).collect();
    let (mut n, mut shown) = (0, 0);
    for seed in a[0]..a[0] + a[1] {
        let s = ChaosScenario::new(seed);
        let r = match catch_unwind(AssertUnwindSafe(|| s.run())) {
            Ok(Ok(())) => continue,
            Ok(Err(e)) => e.to_string(),
            Err(_) => format!("panic {}", s.described()),
        };
        n += 1;
        if shown < a[2] { shown += 1; println!("{seed}: {}\n", &r[..r.len().min(3000)]); } else { println!("{seed}: {}", r.lines().next().unwrap()); }
    }
    println!("{n} failed");
}
