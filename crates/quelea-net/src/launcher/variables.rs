//! The environment variables of every launcher that is recognised.

/// The variables of one launcher.
pub(super) struct Variables {
    pub(super) launcher: &'static str,
    pub(super) rank: &'static str,
    pub(super) world: &'static str,
    pub(super) local_rank: &'static str,
    pub(super) local_size: &'static str,
    /// What tells one job from another.
    pub(super) job: &'static [&'static str],
    /// Which of rank and number of processes show that it was this launcher.
    pub(super) sign: LauncherSign,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LauncherSign {
    /// The rank alone: nobody else sets it.
    Rank,
    /// Both: other programs set one of them for their own purposes.
    Both,
}

/// In order: what a person sets by hand wins; what wraps others comes last, and pods wrap all.
pub(super) const LAUNCHERS: &[Variables] = &[
    Variables {
        launcher: "quelea",
        rank: "QUELEA_RANK",
        world: "QUELEA_WORLD_SIZE",
        local_rank: "QUELEA_LOCAL_RANK",
        local_size: "QUELEA_LOCAL_SIZE",
        job: &["QUELEA_JOB"],
        sign: LauncherSign::Rank,
    },
    Variables {
        launcher: "torchrun",
        rank: "RANK",
        world: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_size: "LOCAL_WORLD_SIZE",
        job: &["TORCHELASTIC_RUN_ID"],
        sign: LauncherSign::Both,
    },
    Variables {
        launcher: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"],
        sign: LauncherSign::Rank,
    },
    Variables {
        launcher: "MPICH",
        rank: "PMI_RANK",
        world: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
        job: &["PMI_JOBID", "PMI_PORT"],
        sign: LauncherSign::Rank,
    },
    Variables {
        launcher: "Slurm",
        rank: "SLURM_PROCID",
        world: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_TASKS_PER_NODE",
        job: &["SLURM_JOB_ID"],
        sign: LauncherSign::Both,
    },
    Variables {
        launcher: "Kubernetes",
        rank: "JOB_COMPLETION_INDEX",
        world: "QUELEA_WORLD_SIZE",
        local_rank: "",
        local_size: "",
        job: &[],
        sign: LauncherSign::Rank,
    },
];
