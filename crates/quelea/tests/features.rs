//! A user who only simulates compiles no socket, TLS, async runtime, plotting or serde.

use std::collections::BTreeSet;
use std::process::Command;

/// The packages that `quelea` with these features needs.
fn packages(features: &str) -> BTreeSet<String> {
    let tree = ["tree", "--offline", "-p", "quelea", "--edges", "normal", "--prefix", "none"];
    let output = Command::new(env!("CARGO"))
        .args(tree)
        .args(["--format", "{p}", "--no-default-features", "--features", features])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_string).collect()
}

#[test]
fn the_virtual_cluster_needs_nothing_but_pure_crates() {
    let found = packages("sim");
    let sockets = ["quelea-net", "tokio", "socket2", "mio"];
    let tls = ["rustls", "rustls-webpki", "rcgen", "ring"];
    let files_and_plots = ["quelea-run", "quelea-plot", "plotters", "serde", "toml"];
    for absent in [&sockets[..], &tls, &files_and_plots].concat() {
        assert!(!found.contains(absent), "{absent} is compiled: {found:?}");
    }
    assert!(found.contains("quelea-sim"));
    assert!(found.len() < 20, "{found:?}");
}

#[test]
fn the_real_cluster_needs_no_virtual_one_and_no_configuration() {
    let found = packages("net");
    for absent in ["quelea-sim", "quelea-run", "quelea-plot", "serde", "toml", "plotters"] {
        assert!(!found.contains(absent), "{absent} is compiled: {found:?}");
    }
    assert!(found.contains("tokio") && found.contains("rustls"));
}
