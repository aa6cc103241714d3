//! What is known before a real run about whose loss would end it.

use quelea_run::config::Config;
use quelea_run::config::source::parse;
use quelea_run::prepared::PreparedRun;

fn prepared(settings: &str) -> PreparedRun {
    let text = format!("task.name = \"quadratic\"\nsteps = 5\n{settings}");
    let config = Config::read(parse(&text).expect("TOML"), &[], None).expect("good");
    PreparedRun::new(config).expect("good")
}

#[test]
fn why_the_loss_of_the_coordinator_would_end_the_run_is_known_before_it_starts() {
    let why = |settings: &str| {
        let settings = format!("algorithm.name = \"d-psgd\"\n{settings}");
        prepared(&settings).survival_refusal().unwrap_or_default()
    };
    assert_eq!(why("workers = 3"), "");
    assert!(why("workers = 2").contains("with 2 of them"), "{}", why("workers = 2"));
    assert_eq!(why("workers = 2\nmembership.quorum = \"any\""), "");
    let stop = why("workers = 4\nmembership.on_loss = \"stop\"");
    assert!(stop.contains("`membership.on_loss`"), "{stop}");
    let mpi = why("workers = 4\ntransport = \"mpi\"");
    assert!(mpi.contains("MPI"), "{mpi}");
    let served = prepared("workers = 4\nalgorithm.name = \"asp\"").survival_refusal();
    assert!(served.expect("it has servers").contains("servers"));
}

#[test]
fn workers_that_mix_for_their_hosts_and_cannot_be_replaced_are_known_before_the_run() {
    let hosts = "workers = 4\ncluster.hosts = 2\ntopology.within_host = \"average\"";
    let replaced = prepared(&format!("{hosts}\nalgorithm.name = \"d-psgd\""));
    assert_eq!(replaced.irreplaceable(), [0u32; 0]);
    let needed = format!("{hosts}\nalgorithm.name = \"gossip-pga\"");
    assert_eq!(prepared(&needed).irreplaceable(), [0u32, 2]);
    let stops = format!("{needed}\nmembership.on_loss = \"stop\"");
    assert_eq!(prepared(&stops).irreplaceable(), [0u32; 0], "the first loss ends it anyway");
}
