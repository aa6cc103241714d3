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

pub(super) const EXCEPTIONS: &[Exception] = &[
    of_readme("pip install .", "", "the module was built before; a wheel is tested by itself"),
    of_readme("python -m quelea.launch -n 4 train.py", "", "run in docs/tutorials/pytorch.md"),
    of_readme(
        "cargo run --release",
        "quelea --set steps=10 --out runs/first",
        "a release build; shorter",
    ),
    of_readme("cargo xtask test", "", "is what runs this"),
    of_readme("cargo install --path crates/quelea-cli", "", "a release build"),
    of_readme(
        "quelea train examples/gossip.toml --processes",
        "quelea train examples/gossip.toml --processes --set workers=2 --set steps=20 --set cluster.hosts=2",
        "sixteen processes are many for a test",
    ),
    of_readme(
        "mpirun -n 4",
        "",
        "needs mpirun; tested where that is installed (crates/quelea-cli/tests/cli.rs)",
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
        "serves until it is ended (crates/quelea-cli/tests/page.rs)",
    ),
    of_readme("quelea plan --measure", "", "run in docs/tutorials/planning.md with two workers"),
    of_readme(
        "quelea reproduce all",
        "",
        "takes minutes; crates/quelea-cli/tests/experiments.rs runs the experiments",
    ),
    of_readme("quelea data get", "", "downloads"),
    of_readme("quelea train examples/fashion-cnn.toml", "", "needs what was downloaded"),
    of_readme("quelea serve run.toml", "", "two machines; crates/quelea-cli/tests/trust.rs"),
    of_readme("quelea join TOKEN", "", "two machines; crates/quelea-cli/tests/trust.rs"),
    of_readme("quelea submit slurm", "", "crates/quelea-cli/tests/submit.rs and slurm.rs"),
    of_readme("sbatch run.sbatch", "", "needs Slurm; crates/quelea-cli/tests/slurm.rs submits it"),
    of_readme("torchrun --nnodes 2", "", "two machines; the tutorial runs torchrun on one"),
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
