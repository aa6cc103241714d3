//! Completions and manual pages have every command.

use std::process::{Command, Stdio};

/// Every command that `quelea --help` lists.
fn commands() -> Vec<String> {
    let (_, help, _) = quelea(&["--help"]);
    let listed = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let listed = listed.take_while(|line| !line.trim().is_empty());
    // The second line of a description is indented further.
    let entries = listed.filter_map(|line| line.strip_prefix("  "));
    let entries = entries.filter(|entry| !entry.starts_with(' '));
    let names = entries.filter_map(|entry| entry.split_whitespace().next());
    let names = names.filter(|name| *name != "help");
    let names: Vec<String> = names.map(str::to_string).collect();
    assert!(names.len() >= 20, "{help}");
    names
}

fn quelea(words: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_quelea"))
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("the command can be started");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn every_shell_completes_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let (_, script, _) = quelea(&["completions", shell]);
        for command in commands() {
            assert!(script.contains(&command), "{shell}: {command}");
        }
        assert!(script.contains("bandwidth-gbps"), "{shell} completes options");
    }
}

#[test]
fn bash_accepts_its_completions() {
    let (_, script, _) = quelea(&["completions", "bash"]);
    let status = Command::new("bash").args(["-n", "-c", &script]).status();
    assert!(status.expect("bash is here").success());
}

#[test]
fn every_command_has_a_manual_page_with_its_options() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (done, _, _) = quelea(&["man", "--out", &folder.path().to_string_lossy()]);
    assert!(done);
    let page = |name: String| std::fs::read_to_string(folder.path().join(name)).expect("a page");
    assert!(page("quelea.1".into()).contains(".SH"));
    for command in commands() {
        let text = page(format!("quelea-{command}.1"));
        assert!(text.contains(&format!("quelea\\-{command}")), "{text}");
    }
    assert!(page("quelea-plan.1".into()).contains("bandwidth\\-gbps"));
    let (_, printed, _) = quelea(&["man", "train"]);
    assert_eq!(printed.trim_end(), page("quelea-train.1".into()).trim_end());
    let (done, _, error) = quelea(&["man", "trian"]);
    assert!(!done && error.contains("must be one of train, simulate"), "{error}");
}
