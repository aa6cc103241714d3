//! Workers in network namespaces that are reached at other addresses than the usual one.
#![cfg(target_os = "linux")]

mod common;

use common::Lab;

const QUELEA: &str = env!("CARGO_BIN_EXE_quelea");

fn lab() -> Option<Lab> {
    let needed = ["sshd", "ssh", "ssh-keygen", "unshare", "ip"];
    let mut lab = Lab::start("addresses", include_str!("ssh/lab.sh"), &["3"], &needed)?;
    lab.good(&format!("cd {}", lab.path("").display()));
    lab.write(
        "run.toml",
        "steps = 20\n[task]\nname = \"quadratic\"\n[algorithm]\nname = \"d-psgd\"\n",
    );
    Some(lab)
}

#[test]
fn a_lab_that_could_start_and_does_not_is_a_failure() {
    let start = || Lab::start("nothing", "echo failed: no network", &[], &["unshare", "ip"]);
    match std::panic::catch_unwind(start) {
        // There are no namespaces here.
        Ok(lab) => assert!(lab.is_none()),
        Err(panic) => {
            let told = panic.downcast_ref::<String>().expect("a text");
            assert_eq!(told, "the lab for nothing has not started: failed: no network");
        }
    }
}

/// Starts rank `rank` of three on a host, with further variables.
fn start(lab: &mut Lab, host: &str, rank: u32, rendezvous: &str, more: &str) {
    let command = format!(
        "QUELEA_RANK={rank} QUELEA_WORLD_SIZE=3 QUELEA_RENDEZVOUS={rendezvous} QUELEA_SECRET=0123456789012345678901 {more} \
         ip netns exec {host} timeout 100 {QUELEA} train run.toml -q --out out{rank} > {host}.log 2>&1 &"
    );
    lab.good(&command);
}

fn ends_well(lab: &mut Lab, model: &str) {
    lab.wait("[ -e out0/summary.json ] || ! pgrep -f 'quelea train'", "cat *.log");
    let (told, status) = lab.run(&format!("wait; cmp out0/final.safetensors {model} && cat *.log"));
    assert_eq!(status, 0, "{told}\n{}", lab.run("cat *.log; ip -n c route").0);
    lab.good("rm -rf out0 *.log");
}

#[test]
fn workers_are_reached_over_ipv6_by_subnet_and_at_an_advertised_address() {
    let Some(mut lab) = lab() else { return };
    lab.good(&format!("{QUELEA} train run.toml --set workers=3 --threads -q --out whole"));
    let model = "whole/final.safetensors";
    for (rank, host) in ["a", "b", "c"].into_iter().enumerate() {
        start(&mut lab, host, rank as u32, "a6:29470", "");
    }
    ends_well(&mut lab, model);

    // c does not reach b where the coordinator sees it, only at another address of b.
    lab.good("ip -n b addr add 10.78.1.12/24 dev eth0 && ip -n c addr add 10.78.1.13/24 dev eth0");
    lab.good(
        "ip -n a addr add 10.78.1.11/24 dev eth0 && ip -n c route add blackhole 10.78.0.12/32",
    );
    start(&mut lab, "a", 0, "a:29470", "");
    start(&mut lab, "b", 1, "a:29470", "QUELEA_LISTEN_PORT=7001 QUELEA_ADVERTISE=10.78.1.12");
    start(&mut lab, "c", 2, "a:29470", "");
    ends_well(&mut lab, model);

    // All use the other network, which they choose by its subnet.
    lab.good("ip -n c route add blackhole 10.78.0.11/32");
    for (rank, host) in ["a", "b", "c"].into_iter().enumerate() {
        start(&mut lab, host, rank as u32, "10.78.1.11:29470", "QUELEA_INTERFACE=10.78.1.0/24");
    }
    ends_well(&mut lab, model);

    let wrong = "QUELEA_RANK=1 QUELEA_WORLD_SIZE=2 QUELEA_RENDEZVOUS=a QUELEA_INTERFACE=ib0";
    let (told, status) = lab.run(&format!("{wrong} ip netns exec b {QUELEA} train run.toml"));
    assert_eq!(status, 2, "{told}");
    assert!(
        told.contains(
            "QUELEA_INTERFACE=ib0: no interface of this machine fits; it has lo (127.0.0.1), eth0"
        ),
        "{told}"
    );
    let unknown = "QUELEA_RANK=1 QUELEA_WORLD_SIZE=2 QUELEA_RENDEZVOUS=nobody.invalid:7000";
    let (told, status) = lab.run(&format!("{unknown} ip netns exec b {QUELEA} train run.toml"));
    assert_eq!(status, 2, "{told}");
    let sentence =
        "quelea: the name of rank 0's machine, nobody.invalid, does not resolve on this machine";
    assert!(told.contains(sentence) && told.contains("QUELEA_RENDEZVOUS=ADDRESS:7000"), "{told}");
    let (told, status) = lab.run(&format!("{QUELEA} join nobody.invalid:29470 --insecure"));
    assert_eq!(status, 2, "{told}");
    assert!(
        told.contains("`HOST:PORT` = nobody.invalid:29470: the name does not resolve here"),
        "{told}"
    );
}
