//! The network between the processes of a run falls into two sides: hosts in network namespaces on two bridges, whose
//! connection is taken down.
#![cfg(target_os = "linux")]

mod common;

use common::Lab;

const QUELEA: &str = env!("CARGO_BIN_EXE_quelea");
const HOSTS: u32 = 8;
/// The status of a process that ends because too few others are within reach.
const NO_QUORUM: i32 = 75;

/// A run over eight hosts, the first `first` of them on one side, with the coordinator on host `at`; the sides are parted
/// once it trains.
fn parted(first: u32, at: u32) -> Option<Lab> {
    let words = [HOSTS.to_string(), first.to_string()];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let script = include_str!("partition/lab.sh");
    let mut lab = Lab::start("partitions", script, &words, &["unshare", "ip"])?;
    lab.write(
        "run.toml",
        "workers = 8\nsteps = 1200\nplots = false\n[task]\nname = \"quadratic\"\ncompute_ms = 20\n\
         [algorithm]\nname = \"d-psgd\"\n",
    );
    let (folder, place) = (lab.path("").display().to_string(), format!("10.79.0.{}", 10 + at));
    lab.good(&format!("cd {folder}"));
    lab.good(&format!(
        "ip netns exec h{at} {QUELEA} serve run.toml --bind {place}:29470 --insecure --out run \
         > serve.txt 2>&1 & pids[serve]=$!"
    ));
    lab.wait("grep -q 'quelea join' serve.txt", "cat serve.txt");
    for host in 1..=HOSTS {
        let rank = host - 1;
        lab.good(&format!(
            "ip netns exec h{host} {QUELEA} join {place}:29470 --insecure --rank {rank} \
             --out left-{rank} > join-{rank}.txt 2>&1 & pids[{rank}]=$!"
        ));
    }
    lab.wait("grep -rqs '\"kind\":\"step\"' run", "cat serve.txt join-*.txt");
    lab.good("ip link set trunk0 down");
    Some(lab)
}

/// How the process of a rank, or `serve`, ends.
fn status(lab: &mut Lab, who: &str) -> i32 {
    lab.run(&format!("wait ${{pids[{who}]}}")).1
}

/// These end without the others: they say whom they miss, and leave their models.
fn end_alone(lab: &mut Lab, ranks: std::ops::Range<u32>) {
    for rank in ranks {
        let ended = status(lab, &rank.to_string());
        let said = lab.run(&format!("cat join-{rank}.txt")).0;
        assert_eq!(ended, NO_QUORUM, "rank {rank}: {said}");
        assert!(said.contains("cannot be reached"), "rank {rank}: {said}");
        let model = lab.path(&format!("left-{rank}/aborted.safetensors"));
        assert!(model.exists(), "rank {rank} leaves its model: {said}");
    }
}

fn end_well(lab: &mut Lab, ranks: std::ops::Range<u32>) {
    for rank in ranks {
        let ended = status(lab, &rank.to_string());
        assert_eq!(ended, 0, "rank {rank}: {}", lab.run(&format!("cat join-{rank}.txt")).0);
    }
}

#[test]
fn of_five_and_three_the_five_continue_with_their_coordinator() {
    let Some(mut lab) = parted(5, 1) else { return };
    end_alone(&mut lab, 5..8);
    end_well(&mut lab, 0..5);
    assert_eq!(status(&mut lab, "serve"), 0, "{}", lab.run("cat serve.txt").0);
    let summary = std::fs::read(lab.path("run/summary.json")).expect("written");
    let summary: serde_json::Value = serde_json::from_slice(&summary).expect("JSON");
    let lost: Vec<bool> = (0..8).map(|rank| summary["ranks"][rank]["lost"] == true).collect();
    assert_eq!(lost, [false, false, false, false, false, true, true, true]);
}

/// These hear from their coordinator that there is no quorum, and who is missing.
fn end_with_coordinator(lab: &mut Lab, ranks: std::ops::Range<u32>) {
    for rank in ranks {
        let ended = status(lab, &rank.to_string());
        let said = lab.run(&format!("cat join-{rank}.txt")).0;
        assert_ne!(ended, 0, "rank {rank}: {said}");
        assert!(said.contains("cannot be reached: 3 of 8 workers are no quorum"), "{said}");
    }
}

#[test]
fn of_five_and_three_the_five_continue_without_their_coordinator() {
    let Some(mut lab) = parted(5, 8) else { return };
    end_with_coordinator(&mut lab, 5..8);
    end_well(&mut lab, 0..5);
    assert_eq!(status(&mut lab, "serve"), NO_QUORUM, "{}", lab.run("cat serve.txt").0);
    assert!(lab.path("left-0/final.safetensors").exists(), "rank 0 has taken over");
    assert!(!lab.path("run/final.safetensors").exists(), "the others have not finished it");
}

#[test]
fn of_four_and_four_only_the_side_of_the_coordinator_continues() {
    let Some(mut lab) = parted(4, 1) else { return };
    end_alone(&mut lab, 4..8);
    end_well(&mut lab, 0..4);
    assert_eq!(status(&mut lab, "serve"), 0, "{}", lab.run("cat serve.txt").0);
    let finished = lab.run("find . -name final.safetensors").0;
    assert_eq!(finished.trim(), "./run/final.safetensors", "one side has finished the run");
}
