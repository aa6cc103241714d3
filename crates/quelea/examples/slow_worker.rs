//! One of eight workers takes ten times as long: who waits, in virtual time.

use quelea::{Cluster, Error, Run};

fn main() -> Result<(), Error> {
    let even = Cluster::default();
    let slow = Cluster { slow: [(3, 10.0)].into(), ..Cluster::default() };
    println!("{:<10} {:>12} {:>12}", "", "even", "one slow");
    let mut slowdowns = Vec::new();
    for name in ["allreduce", "d-psgd", "ad-psgd", "aladdin"] {
        // Worker k pulls all parameters towards k.
        let run = Run::new(vec![0.0; 1000])
            .workers(8)
            .steps(200)
            .algorithm(name)
            .learning_rate(0.05)
            .gradient(|batch, params, grad| {
                grad.iter_mut().zip(params).for_each(|(g, x)| *g = x - batch.worker as f32);
                grad.iter().map(|g| 0.5 * g * g).sum::<f32>() / 1000.0
            });
        let (even, slow) = (run.simulate(&even)?.seconds(), run.simulate(&slow)?.seconds());
        println!("{name:<10} {even:>10.1} s {slow:>10.1} s");
        slowdowns.push(slow / even);
    }
    // All-reduce waits for the slow worker at every step; the asynchronous ones do not.
    assert!(slowdowns[0] > 9.0 && slowdowns[3] < 2.0, "{slowdowns:?}");
    Ok(())
}
