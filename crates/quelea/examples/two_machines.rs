//! One run on several machines: the same program everywhere.
//!
//! ```sh
//! cargo run --example two_machines -- serve 0.0.0.0:29470 first-machine   # prints a token
//! cargo run --example two_machines -- join TOKEN          # on every machine that trains, per worker
//! ```
//! Without arguments everything happens here: two workers join over TCP on loopback.

use quelea::{Error, Run, RunOutcome};

/// Every process describes the same run; where they differ, `join` says in what.
fn run() -> Run {
    Run::new(vec![0.0; 100]).workers(2).steps(100).learning_rate(0.1).gradient(
        |batch, params, grad| {
            grad.iter_mut().zip(params).for_each(|(g, x)| *g = x - batch.worker as f32);
            grad.iter().map(|g| 0.5 * g * g).sum()
        },
    )
}

fn report(outcome: &RunOutcome) {
    let sent: u64 = outcome.ranks().iter().map(|rank| rank.bytes_sent).sum();
    println!("loss {:.3} after {:.2} s, {sent} bytes sent", outcome.loss(), outcome.seconds());
}

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address, host] => {
            let served = run().bind(address)?;
            if let Some(token) = served.token(host) {
                println!("{}", token.reveal());
            }
            report(&served.run()?);
        }
        ["join", place] => run().join(place)?,
        [] => report(&both()?),
        _ => eprintln!("usage: two_machines [serve ADDRESS:PORT HOST | join TOKEN]"),
    }
    Ok(())
}

fn both() -> Result<RunOutcome, Error> {
    let served = run().bind("127.0.0.1:0")?;
    let address = served.address().to_string();
    std::thread::scope(|scope| {
        let workers = [0, 1].map(|_| scope.spawn(|| run().join(&address)));
        let outcome = served.run()?;
        for worker in workers {
            worker.join().expect("a worker does not panic")?;
        }
        // The same bits as in the threads of one process.
        assert_eq!(outcome.model(), run().threads()?.model());
        Ok(outcome)
    })
}
