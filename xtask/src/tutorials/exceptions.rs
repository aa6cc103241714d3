//! Commands that a page prints and that are not run as they are printed.

/// A command, and what is run in its place.
pub(super) struct Exception {
    /// Where it is printed.
    pub(super) page: &'static str,
    /// How its line begins.
    pub(super) command: &'static str,
    /// A shorter or safer form, or nothing.
    pub(super) instead: &'static str,
    /// Why, and what covers it.
    #[allow(dead_code, reason = "for people who read the table")]
    why: &'static str,
}

impl Exception {
    /// Whether it stands for this line.
    pub(super) fn is_for(&self, page: &str, line: &str) -> bool {
        self.page == page && line.starts_with(self.command)
    }
}

const fn of_readme(command: &'static str, instead: &'static str, why: &'static str) -> Exception {
    Exception { page: "README.md", command, instead, why }
}

/// Two agents of torchrun on this machine, at an address of it that quelea takes for another machine's; without a secret they
/// are refused. A machine that has no such address leaves the refusal out.
const TWO_AGENTS: &str = r#"
address=$( (hostname -I 2> /dev/null || true) | cut -d ' ' -f 1)
address=${address:-127.0.0.1}
port=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
agent() { torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:$port --local-addr $address train.py; }
agent & agent; wait $!
if [ $address != 127.0.0.1 ]; then
  if (unset QUELEA_SECRET; agent & agent; wait $!) > without-secret 2>&1; then exit 1; fi
  grep -q 'QUELEA_SECRET to the same long random text' without-secret
fi
"#;

/// A folder of pictures in the format of Fashion-MNIST.
const FASHION: &str = r#"
mkdir fashion-mnist
for part in train t10k; do
  { printf '\0\0\10\3\0\0\1\0\0\0\0\34\0\0\0\34'; head -c $((256 * 784)) /dev/urandom; } > fashion-mnist/$part-images-idx3-ubyte
  { printf '\0\0\10\1\0\0\1\0'; for k in $(seq 256); do printf "\\$((k % 8))"; done; } > fashion-mnist/$part-labels-idx1-ubyte
done
quelea train examples/fashion-cnn.toml --set task.data=fashion-mnist --set epochs=1 --set task.batch=16
"#;

pub(super) const EXCEPTIONS: &[Exception] = &[
    of_readme(
        "pip install .",
        "",
        "a release build; run by the test of the wheel (wheel.rs) with a build for tests, into an empty environment",
    ),
    of_readme(
        "cargo run --release",
        "quelea --set steps=10 --out runs/first",
        "a release build; the same program as the tests build it, for fewer steps",
    ),
    of_readme("cargo xtask test", "", "is what runs this"),
    of_readme(
        "cargo install --path crates/quelea-cli",
        "(cd / && cargo install --quiet --debug --locked --offline --path $REPOSITORY/crates/quelea-cli \
         --target-dir $TARGET --root $OLDPWD/installed) && installed/bin/quelea list algorithms > /dev/null",
        "a release build into the reader's home; here what the tests have built",
    ),
    of_readme(
        "quelea train examples/gossip.toml --processes",
        "quelea train examples/gossip.toml --processes --set workers=2 --set steps=20 --set cluster.hosts=2",
        "sixteen processes are many for a test",
    ),
    of_readme(
        "mpirun -n 4",
        "if command -v mpirun > /dev/null; then mpirun --allow-run-as-root --oversubscribe -n 4 \
         quelea train examples/gossip.toml --set workers=4 --set steps=20; fi",
        "where mpirun is; with what it asks of root and of a machine with few cores; shorter",
    ),
    of_readme(
        "quelea compare --algorithms aladdin,allreduce,d-psgd",
        "quelea compare --algorithms aladdin,allreduce,d-psgd --set cluster.slow.3=5 --set steps=10",
        "shorter",
    ),
    of_readme(
        "quelea train examples/gossip.toml --page",
        "quelea train examples/gossip.toml --page 127.0.0.1:0 --set workers=4 --set steps=20",
        "another program may listen there; shorter",
    ),
    of_readme(
        "quelea page runs/",
        "",
        "serves until it is ended: crates/quelea-cli/tests/page.rs runs it and looks at what it serves",
    ),
    of_readme(
        "quelea plan --measure",
        "quelea plan --measure --task digits-mlp -n 2",
        "four processes are many for two cores",
    ),
    of_readme(
        "quelea reproduce all",
        "quelea reproduce all --no-training --small --out report-of-all",
        "takes minutes; the same experiments with fewer steps",
    ),
    of_readme(
        "quelea data get",
        "",
        "downloads from another host: crates/quelea-data/tests/fetch.rs downloads from a server of its own",
    ),
    of_readme(
        "quelea train examples/fashion-cnn.toml",
        FASHION,
        "needs what was downloaded; here pictures of the same format, for fewer steps",
    ),
    of_readme(
        "quelea serve run.toml",
        "",
        "serves until workers have joined: crates/quelea-cli/tests/trust.rs runs both, with the token that is printed",
    ),
    of_readme(
        "quelea join TOKEN",
        "",
        "needs the token of the line before: crates/quelea-cli/tests/trust.rs",
    ),
    of_readme(
        "export QUELEA_SECRET=…",
        "export QUELEA_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')",
        "a secret is the reader's own",
    ),
    of_readme("torchrun --nnodes 2", TWO_AGENTS, "two machines; here two agents on one"),
    of_readme("quelea submit slurm", "", "crates/quelea-cli/tests/submit.rs and slurm.rs"),
    of_readme("sbatch run.sbatch", "", "needs Slurm; crates/quelea-cli/tests/slurm.rs submits it"),
    of_readme(
        "quelea train run.toml --out runs/long",
        "quelea train run.toml --out runs/long --set steps=10 --set checkpoint.every=5 && rm runs/long/final.safetensors",
        "shorter, and interrupted after its last checkpoint",
    ),
    of_readme(
        "quelea train --resume runs/long  ",
        "quelea train --resume runs/long --out runs/longer",
        "so that the next line can resume it too",
    ),
];
