//! Runs and scripts on other machines over SSH: hosts in network namespaces with an SSH server each.
#![cfg(target_os = "linux")]

mod common;

use std::fs;

use common::Lab;

const QUELEA: &str = env!("CARGO_BIN_EXE_quelea");

fn lab(hosts: &str) -> Option<Lab> {
    let needed = ["sshd", "ssh", "ssh-keygen", "unshare", "ip"];
    let mut lab = Lab::start("SSH", include_str!("ssh/lab.sh"), &[hosts], &needed)?;
    let folder = lab.path("").display().to_string();
    lab.good(&format!("cd {folder}; over=(--ssh \"$ssh\" --remote-program {QUELEA})"));
    lab.write(
        "run.toml",
        "steps = 30\n[task]\nname = \"quadratic\"\n[algorithm]\nname = \"d-psgd\"\n",
    );
    Some(lab)
}

/// One set of hosts for all: they take longer to set up than a run takes.
#[test]
fn hosts_that_are_reached_over_ssh_train_together_and_nothing_outlives_the_command() {
    let Some(mut lab) = lab("2") else { return };
    workers_train_to_the_bits_of_threads(&mut lab);
    what_is_wrong_with_hosts_is_said_for_all_of_them(&mut lab);
    scripts_get_ranks_and_their_lines_have_host_and_rank(&mut lab);
    a_script_that_fails_ends_the_others(&mut lab);
    for how in ["kill -INT $launch", "kill -9 $launch", "ip -n b link set eth0 down"] {
        nothing_outlives(&mut lab, how);
        training_ends_with_the_command(&mut lab, how);
    }
}

fn workers_train_to_the_bits_of_threads(lab: &mut Lab) {
    let told =
        lab.good(&format!("{QUELEA} train run.toml --hosts a:2,b:2 \"${{over[@]}}\" --out there"));
    assert!(told.contains("there"), "{told}");
    lab.good(&format!("{QUELEA} train run.toml --set workers=4 --threads -q --out here"));
    let model = |run: &str| fs::read(lab.path(run).join("final.safetensors")).expect("a model");
    assert_eq!(model("there"), model("here"));
    lab.wait("! pgrep -f 'quelea (join|agent)'", "ps -ef");
}

fn what_is_wrong_with_hosts_is_said_for_all_of_them(lab: &mut Lab) {
    lab.write("old", "#!/bin/sh\necho '{\"Hello\":{\"version\":\"0.0.1\"}}'\nread forever\n");
    lab.good("chmod +x old");
    let old =
        format!("{QUELEA} train run.toml --ssh \"$ssh\" --remote-program $PWD/old --hosts a,b");
    let (told, status) = lab.run(&old);
    assert_eq!(status, 1, "{told}");
    for host in ["a", "b"] {
        assert!(told.contains(&format!("{host} has quelea 0.0.1, this is ")), "{told}");
    }
    let (told, status) =
        lab.run(&format!("{QUELEA} train run.toml --hosts a,nobody \"${{over[@]}}\""));
    assert_eq!(status, 1, "{told}");
    assert!(told.contains("nobody: ") && told.contains("resolve"), "{told}");
    let (told, status) = lab.run(&format!("{QUELEA} train run.toml --hosts a:0"));
    assert_eq!(status, 2, "{told}");
    assert!(told.contains("`--hosts` = a:0"), "{told}");
}

fn launch(script: &str) -> String {
    format!("{QUELEA} launch -H a:2,b:1 \"${{over[@]}}\" --python /bin/sh {script}")
}

fn scripts_get_ranks_and_their_lines_have_host_and_rank(lab: &mut Lab) {
    let text = "echo $QUELEA_RANK/$QUELEA_WORLD_SIZE $QUELEA_LOCAL_RANK/$QUELEA_LOCAL_SIZE $QUELEA_RENDEZVOUS \
                ${#QUELEA_SECRET} $1; tr '\\0' ' ' < /proc/$PPID/cmdline";
    lab.write("ranks.sh", text);
    let told = lab.good(&launch("ranks.sh word"));
    for line in [
        "[a:0] 0/3 0/2 a:29470 64 word",
        "[a:1] 1/3 1/2 a:29470 64 word",
        "[b:2] 2/3 0/1 a:29470 64 word",
    ] {
        assert!(told.lines().any(|told| told == line), "{line} is not in\n{told}");
    }
    assert!(told.contains(" agent"), "started by the agent: {told}");
    // The secret reaches every script, and no command line on the way: `ps` shows those to everybody. Only words
    // that the shell has itself are used, so that the search is not what is found.
    let text = "echo secret $QUELEA_SECRET; cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | { found=0; own=0; \
                while read -r word; do case $word in *$QUELEA_SECRET*) found=$((found + 1)) ;; \
                *secret.sh*) own=1 ;; esac; done; echo found $found $own; }";
    lab.write("secret.sh", text);
    let told = lab.good(&launch("secret.sh"));
    let said = |what: &str| -> Vec<String> {
        let words = told.lines().filter_map(|line| Some(line.split_once("] ")?.1.to_string()));
        words.filter(|words| words.starts_with(what)).collect()
    };
    let secrets = said("secret ");
    assert!(secrets.len() == 3 && secrets.iter().all(|told| told.len() == 7 + 64), "{told}");
    assert_eq!(
        said("found "),
        ["found 0 1"; 3],
        "its own words are found, the secret is not: {told}"
    );
}

fn a_script_that_fails_ends_the_others(lab: &mut Lab) {
    lab.write("fails.sh", "[ $QUELEA_RANK = 2 ] && exit 7\nexec sleep 1000\n");
    let (told, status) = lab.run(&launch("fails.sh"));
    assert_eq!(status, 7, "{told}");
    assert!(told.contains("rank 2 on b ended with status 7; the others were ended"), "{told}");
    lab.wait("! pgrep -x sleep", "ps -ef");
}

/// Every process of a launch ends when this is done to it.
fn nothing_outlives(lab: &mut Lab, how: &str) {
    lab.write("long.sh", "echo $$ > $PWD/pid-$QUELEA_RANK\nsleep 1000\n");
    lab.good("rm -f pid-*");
    lab.good(&format!("{{ {} > launched 2>&1 & }}; launch=$!", launch("long.sh")));
    lab.wait("[ -e pid-0 ] && [ -e pid-1 ] && [ -e pid-2 ]", "cat launched; ps -ef");
    lab.good(how);
    lab.wait("! pgrep -x sleep && ! pgrep -f 'quelea agent'", "cat launched; ps -ef");
    lab.good("wait $launch; ip -n b link set eth0 up; true");
}

/// The same for workers of `train --hosts`: Ctrl-C saves the run, a host that is lost leaves it, and no worker stays.
fn training_ends_with_the_command(lab: &mut Lab, how: &str) {
    lab.good("rm -rf trained");
    let settings = "--set steps=100000 --set task.compute_ms=20 --set checkpoint.every=10";
    let train = format!(
        "{QUELEA} train run.toml {settings} --hosts a:2,b:1 \"${{over[@]}}\" --out trained"
    );
    lab.good(&format!("{{ {train} > launched 2>&1 & }}; launch=$!"));
    let shown = "cat launched; ps -ef";
    lab.wait("compgen -G 'trained/checkpoints/step-*'", shown);
    lab.good(how);
    if how.contains("link") {
        lab.wait("grep -q 'worker 2 lost after .*; the others continue' launched", shown);
        lab.good("kill -INT $launch");
    }
    lab.wait("! pgrep -f 'quelea (join|agent)'", shown);
    let (told, status) = lab.run("wait $launch");
    assert_eq!(status, if how.contains("-9") { 137 } else { 130 }, "{told}");
    lab.good("ip -n b link set eth0 up; compgen -G 'trained/checkpoints/step-*'");
}
