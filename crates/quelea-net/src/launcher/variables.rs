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
    /// How it numbers processes.
    pub(super) numbering: Numbering,
    /// What else says where rank 0 is.
    pub(super) place: MeetingPlace,
}

/// How a launcher numbers processes; ranks count from 0, and rank 0 coordinates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbering {
    /// As ranks.
    FromZero,
    /// From 1.
    FromOne,
    /// From 0, and this variable has the number of the process that others can reach.
    Around(&'static str),
}

/// What says where rank 0 is, where no variable has its address and port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MeetingPlace {
    /// Nothing: all are on one machine, where rank 0 leaves its address in a file.
    OneMachine,
    /// The same, but only if this variable is 1.
    OneMachineIf(&'static str),
    /// The same, but only if as many processes are on this machine as there are.
    OneMachineOnly,
    /// Slurm's list of nodes.
    SlurmNodes,
    /// The first word of one of these variables.
    FirstWord(&'static [&'static str]),
    /// The first line of the file that this variable names.
    FirstLineOf(&'static str),
    /// This variable, for all but rank 0.
    ToldToOthers(&'static str),
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
        numbering: Numbering::FromZero,
        place: MeetingPlace::OneMachine,
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
        numbering: Numbering::FromZero,
        place: MeetingPlace::OneMachine,
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
        numbering: Numbering::FromZero,
        place: MeetingPlace::OneMachine,
    },
    // Flux sets the variables of MPICH too.
    Variables {
        launcher: "Flux",
        rank: "FLUX_TASK_RANK",
        world: "FLUX_JOB_SIZE",
        local_rank: "FLUX_TASK_LOCAL_ID",
        local_size: "",
        job: &["FLUX_JOB_ID"],
        master: MASTER,
        sign: LauncherSign::Both,
        numbering: Numbering::FromZero,
        place: MeetingPlace::OneMachineIf("FLUX_JOB_NNODES"),
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
        numbering: Numbering::FromZero,
        place: MeetingPlace::OneMachine,
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
        numbering: Numbering::FromZero,
        place: MeetingPlace::SlurmNodes,
    },
    Variables {
        launcher: "jsrun",
        rank: "JSM_NAMESPACE_RANK",
        world: "JSM_NAMESPACE_SIZE",
        local_rank: "JSM_NAMESPACE_LOCAL_RANK",
        local_size: "JSM_NAMESPACE_LOCAL_SIZE",
        job: &["LSB_JOBID"],
        master: MASTER,
        sign: LauncherSign::Both,
        numbering: Numbering::FromZero,
        place: MeetingPlace::OneMachineOnly,
    },
    Variables {
        launcher: "LSF",
        rank: "LSF_PM_TASKID",
        world: "LSB_DJOB_NUMPROC",
        local_rank: "",
        local_size: "",
        job: &["LSB_JOBID"],
        master: MASTER,
        sign: LauncherSign::Both,
        numbering: Numbering::FromOne,
        place: MeetingPlace::FirstWord(&["LSB_HOSTS", "LSB_MCPU_HOSTS"]),
    },
    Variables {
        launcher: "Torque",
        rank: "PBS_VNODENUM",
        world: "PBS_NP",
        local_rank: "",
        local_size: "",
        job: &["PBS_JOBID"],
        master: MASTER,
        sign: LauncherSign::Both,
        numbering: Numbering::FromZero,
        place: MeetingPlace::FirstLineOf("PBS_NODEFILE"),
    },
    Variables {
        launcher: "PBS",
        rank: "PBS_NODENUM",
        world: "QUELEA_WORLD_SIZE",
        local_rank: "",
        local_size: "",
        job: &["PBS_JOBID"],
        master: MASTER,
        sign: LauncherSign::Both,
        numbering: Numbering::FromZero,
        place: MeetingPlace::FirstLineOf("PBS_NODEFILE"),
    },
    Variables {
        launcher: "SkyPilot",
        rank: "SKYPILOT_NODE_RANK",
        world: "SKYPILOT_NUM_NODES",
        local_rank: "",
        local_size: "",
        job: &["SKYPILOT_TASK_ID"],
        master: MASTER,
        sign: LauncherSign::Both,
        numbering: Numbering::FromZero,
        place: MeetingPlace::FirstWord(&["SKYPILOT_NODE_IPS"]),
    },
    Variables {
        launcher: "AWS Batch",
        rank: "AWS_BATCH_JOB_NODE_INDEX",
        world: "AWS_BATCH_JOB_NUM_NODES",
        local_rank: "",
        local_size: "",
        job: &["AWS_BATCH_JOB_ID"],
        master: MASTER,
        sign: LauncherSign::Both,
        numbering: Numbering::Around("AWS_BATCH_JOB_MAIN_NODE_INDEX"),
        place: MeetingPlace::ToldToOthers("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"),
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
        numbering: Numbering::FromZero,
        place: MeetingPlace::OneMachine,
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
        numbering: Numbering::FromZero,
        place: MeetingPlace::OneMachine,
    },
];
