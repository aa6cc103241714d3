//! `quelea doctor` over four hosts in network namespaces, of which two do not reach each other and one is slow.
#![cfg(target_os = "linux")]

mod common;

use common::Lab;
use serde_json::Value;

const QUELEA: &str = env!("CARGO_BIN_EXE_quelea");

#[test]
fn a_slow_host_and_a_pair_without_a_way_are_named() {
    let needed = ["sshd", "ssh", "ssh-keygen", "unshare", "ip", "tc"];
    let script = include_str!("ssh/lab.sh");
    let Some(mut lab) = Lab::start("doctor", script, &["4"], &needed) else { return };
    lab.good(&format!(
        "cd {}; over=(--ssh \"$ssh\" --remote-program {QUELEA})",
        lab.path("").display()
    ));
    let all = format!("{QUELEA} doctor --hosts a,b,c,d \"${{over[@]}}\"");
    let (told, status) = lab.run(&format!("{all} --save cluster.toml"));
    assert_eq!(status, 0, "{told}");
    let planned =
        lab.good(&format!("{QUELEA} plan cluster.toml --model resnet-50 --compute-ms 100"));
    assert!(planned.contains("4 workers on 4 machines"), "{planned}");

    lab.good("tc -n c qdisc add dev eth0 root tbf rate 8mbit burst 32kb latency 400ms");
    lab.good("ip -n a route add blackhole 10.78.0.14/32");
    let (told, status) = lab.run(&format!("{all} --json > examined.json"));
    assert_eq!(status, 1, "{told}");
    assert!(told.contains("1 pair of hosts cannot train together"), "{told}");
    let text = std::fs::read(lab.path("examined.json")).expect("written");
    let examined: Value = serde_json::from_slice(&text).expect("JSON");
    let what = |finding: &Value| finding["what"].as_str().expect("text").to_string();
    let found: Vec<String> =
        examined["findings"].as_array().expect("a list").iter().map(what).collect();
    assert!(found[0].starts_with("a and d do not reach each other ("), "{found:?}");
    assert!(
        found.iter().any(|what| what.starts_with("c sends slowly to all others: ")),
        "{found:?}"
    );
    assert_eq!(examined["pairs"].as_array().map(Vec::len), Some(12));
    lab.wait("! pgrep -f 'quelea (probe|agent)'", "ps -ef");
}
