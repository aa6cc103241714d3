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
    /// Where rank 0's machine and a port of it are named.
    pub(super) master: [&'static str; 2],
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

/// What most launchers use.
const MASTER: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];

/// In order: what a person sets by hand wins; what wraps others comes last, and pods wrap all.
pub(super) const LAUNCHERS: &[Variables] = &[
    Variables {
        launcher: "quelea",
        rank: "QUELEA_RANK",
        world: "QUELEA_WORLD_SIZE",
        local_rank: "QUELEA_LOCAL_RANK",
        local_size: "QUELEA_LOCAL_SIZE",
        job: &["QUELEA_JOB"],
        master: MASTER,
        sign: LauncherSign::Rank,
    },
    Variables {
        launcher: "torchrun",
        rank: "RANK",
        world: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_size: "LOCAL_WORLD_SIZE",
        job: &["TORCHELASTIC_RUN_ID"],
        master: MASTER,
        sign: LauncherSign::Both,
    },
    Variables {
        launcher: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        world: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"],
        master: MASTER,
        sign: LauncherSign::Rank,
    },
    Variables {
        launcher: "MPICH",
        rank: "PMI_RANK",
        world: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
        job: &["PMI_JOBID", "PMI_PORT"],
        master: MASTER,
        sign: LauncherSign::Rank,
    },
    Variables {
        launcher: "Slurm",
        rank: "SLURM_PROCID",
        world: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_TASKS_PER_NODE",
        job: &["SLURM_JOB_ID"],
        master: MASTER,
        sign: LauncherSign::Both,
    },
    Variables {
        launcher: "Kubeflow",
        rank: "PET_NODE_RANK",
        world: "PET_NNODES",
        local_rank: "",
        local_size: "",
        job: &[],
        master: ["PET_MASTER_ADDR", "PET_MASTER_PORT"],
        sign: LauncherSign::Both,
    },
    Variables {
        launcher: "Kubernetes",
        rank: "JOB_COMPLETION_INDEX",
        world: "QUELEA_WORLD_SIZE",
        local_rank: "",
        local_size: "",
        job: &[],
        master: MASTER,
        sign: LauncherSign::Rank,
    },
];
