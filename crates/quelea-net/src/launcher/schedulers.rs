//! The environments that schedulers really set, each as its own documentation or source has it.

use super::{Launched, LauncherError, PORT, Rendezvous, detect};

fn detected(pairs: &[(&str, &str)]) -> Result<Option<Launched>, LauncherError> {
    let find = |name: &str| pairs.iter().find(|(key, _)| *key == name);
    detect(|name| find(name).map(|(_, value)| value.to_string()))
}

fn launched(pairs: &[(&str, &str)]) -> Launched {
    detected(pairs).expect("usable").expect("a launcher")
}

fn with(first: &[(&'static str, &'static str)], more: &[(&'static str, &'static str)]) -> Launched {
    launched(&[first, more].concat())
}

fn place(found: &Launched) -> (u32, u32, &'static str, String) {
    (found.rank, found.world, found.launcher, found.rendezvous.to_join())
}

fn refused(pairs: &[(&str, &str)]) -> String {
    detected(pairs).expect_err("refused").to_string()
}

/// Source: "torchrun (Elastic Launch)", the section "Environment Variables" of PyTorch's documentation.
#[test]
fn torchrun_starts_again_with_another_number_of_processes() {
    let both = [
        ("ROLE_NAME", "default"),
        ("MASTER_ADDR", "10.0.0.7"),
        ("TORCHELASTIC_MAX_RESTARTS", "3"),
        ("TORCHELASTIC_RUN_ID", "train-7"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ];
    let before = [
        ("LOCAL_RANK", "1"),
        ("RANK", "5"),
        ("GROUP_RANK", "1"),
        ("ROLE_RANK", "5"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("WORLD_SIZE", "8"),
        ("GROUP_WORLD_SIZE", "2"),
        ("ROLE_WORLD_SIZE", "8"),
        ("MASTER_PORT", "41234"),
        ("TORCHELASTIC_RESTART_COUNT", "0"),
    ];
    let found = with(&both, &before);
    assert_eq!(place(&found), (5, 8, "torchrun", "10.0.0.7:41235".into()));
    assert_eq!((found.local_rank, found.local_size), (Some(1), Some(4)));
    // One of the two machines is gone: the rest has new ranks, and another port.
    let after = [
        ("LOCAL_RANK", "1"),
        ("RANK", "1"),
        ("GROUP_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("WORLD_SIZE", "4"),
        ("GROUP_WORLD_SIZE", "1"),
        ("MASTER_PORT", "52345"),
        ("TORCHELASTIC_RESTART_COUNT", "1"),
    ];
    assert_eq!(place(&with(&both, &after)), (1, 4, "torchrun", "127.0.0.1:52346".into()));
}

/// Source: flux-environment(7), the section "Job environment".
#[test]
fn flux_meets_at_a_file_on_one_node_and_must_be_told_elsewhere() {
    let job = [
        ("FLUX_JOB_ID", "ƒ3ghmgCpw"),
        ("FLUX_JOB_SIZE", "8"),
        ("FLUX_TASK_RANK", "6"),
        ("FLUX_TASK_LOCAL_ID", "2"),
        ("FLUX_JOB_TMPDIR", "/tmp/flux-1"),
        ("PMI_RANK", "6"),
        ("PMI_SIZE", "8"),
        ("PMI_FD", "11"),
    ];
    let one = with(&job, &[("FLUX_JOB_NNODES", "1")]);
    assert_eq!((one.rank, one.world, one.launcher, one.local_rank), (6, 8, "Flux", Some(2)));
    let Rendezvous::LocalFile(path) = &one.rendezvous else { panic!("{one:?}") };
    assert!(path.ends_with("quelea-flux--3ghmgCpw"), "{}", path.display());
    let two = [&job[..], &[("FLUX_JOB_NNODES", "2")]].concat();
    let told = refused(&two);
    assert!(told.starts_with("Flux: QUELEA_RENDEZVOUS is not set: the processes do not"), "{told}");
    let told = launched(&[&two[..], &[("QUELEA_RENDEZVOUS", "node3")]].concat());
    assert_eq!(place(&told), (6, 8, "Flux", format!("node3:{PORT}")));
}

/// Sources: the variables of LSF's jobs, "Environment variables set for job execution" of IBM Spectrum LSF; that tasks of
/// blaunch count from 1, Open MPI's module `ess/lsf`.
#[test]
fn tasks_of_lsf_count_from_one_and_meet_at_the_first_host() {
    let job = [
        ("LSB_JOBID", "4711"),
        ("LSB_DJOB_NUMPROC", "3"),
        ("LSB_MCPU_HOSTS", "hosta 1 hostb 2"),
        ("LSF_PM_TASKID", "3"),
    ];
    let found = with(&job, &[("LSB_HOSTS", "hosta hostb hostb")]);
    assert_eq!(place(&found), (2, 3, "LSF", format!("hosta:{PORT}")));
    // A long list of hosts is left out of the first variable.
    assert_eq!(launched(&job), found);
    let none = refused(&[("LSF_PM_TASKID", "0"), ("LSB_DJOB_NUMPROC", "3")]);
    assert_eq!(none, "LSF: LSF_PM_TASKID=0: must be from 1 to LSB_DJOB_NUMPROC=3");
}

/// Source: PyTorch Lightning's `LSFEnvironment`, which reads what jsrun sets.
#[test]
fn jsrun_gives_ranks_but_no_place_on_several_machines() {
    let job = [("LSB_JOBID", "4711"), ("JSM_NAMESPACE_SIZE", "4"), ("JSM_NAMESPACE_RANK", "3")];
    let one = [("JSM_NAMESPACE_LOCAL_RANK", "3"), ("JSM_NAMESPACE_LOCAL_SIZE", "4")];
    let found = with(&job, &one);
    assert_eq!((found.rank, found.world, found.launcher), (3, 4, "jsrun"));
    assert_eq!((found.local_rank, found.local_size), (Some(3), Some(4)));
    assert!(found.rendezvous.to_join().ends_with("quelea-jsrun-4711"), "{found:?}");
    let two = [&job[..], &[("JSM_NAMESPACE_LOCAL_SIZE", "2")]].concat();
    assert!(refused(&two).starts_with("jsrun: QUELEA_RENDEZVOUS is not set"));
}

/// Source: "Exported batch environment variables" of Torque's guide, and its pbsdsh.
#[test]
fn tasks_of_torque_meet_at_the_first_node_and_the_script_of_a_job_is_none_of_them() {
    let nodes = std::env::temp_dir().join(format!("quelea-nodefile-{}", std::process::id()));
    std::fs::write(&nodes, "node12\nnode12\nnode7\nnode7\n").expect("a temporary folder");
    let path = nodes.display().to_string();
    let task = |number: &'static str, task: &'static str| {
        let job = [("PBS_JOBID", "17.server"), ("PBS_NP", "4"), ("PBS_NODEFILE", path.as_str())];
        let own = [("PBS_VNODENUM", number), ("PBS_TASKNUM", task), ("PBS_NODENUM", "0")];
        detected(&[&job[..], &own].concat()).expect("usable")
    };
    let found = task("3", "2").expect("a task");
    assert_eq!(place(&found), (3, 4, "Torque", format!("node12:{PORT}")));
    assert_eq!(task("0", "2").expect("a task").rank, 0);
    assert_eq!(task("0", "1"), None, "the script itself");
    std::fs::remove_file(&nodes).expect("it was written");
}

/// Source: "PBS Environmental Variables" of the PBS Professional reference guide: the number of processes is not among them.
#[test]
fn tasks_of_pbs_need_to_be_told_how_many_they_are() {
    let task = [("PBS_JOBID", "17.server"), ("PBS_NODENUM", "1"), ("PBS_TASKNUM", "2")];
    assert_eq!(detected(&task), Ok(None), "nobody has said that it is one of several");
    let told = [("QUELEA_WORLD_SIZE", "4"), ("QUELEA_RENDEZVOUS", "node12")];
    assert_eq!(place(&with(&task, &told)), (1, 4, "PBS", format!("node12:{PORT}")));
}

/// Source: "Distributed Multi-Node Jobs" of SkyPilot's documentation.
#[test]
fn nodes_of_skypilot_meet_at_the_first_address() {
    let node = [
        ("SKYPILOT_NODE_RANK", "1"),
        ("SKYPILOT_NODE_IPS", "10.1.0.4\n10.1.0.9\n"),
        ("SKYPILOT_NUM_NODES", "2"),
        ("SKYPILOT_NUM_GPUS_PER_NODE", "8"),
        ("SKYPILOT_TASK_ID", "sky-2026-01-05-12-00-00-000000_cluster-1"),
    ];
    assert_eq!(place(&launched(&node)), (1, 2, "SkyPilot", format!("10.1.0.4:{PORT}")));
    let torch = [("RANK", "9"), ("WORLD_SIZE", "16"), ("MASTER_ADDR", "10.1.0.4")];
    assert_eq!(with(&node, &torch).launcher, "torchrun", "what the node has started wins");
}

/// Source: "Environment variables" of multi-node parallel jobs in the AWS Batch user guide.
#[test]
fn nodes_of_aws_batch_meet_at_the_main_node_which_is_not_told_its_own_address() {
    let job = [
        ("AWS_BATCH_JOB_ID", "b0ce"),
        ("AWS_BATCH_JOB_NUM_NODES", "3"),
        ("AWS_BATCH_JOB_MAIN_NODE_INDEX", "2"),
    ];
    let address = ("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "172.31.4.2");
    let child = |index| place(&with(&job, &[("AWS_BATCH_JOB_NODE_INDEX", index), address]));
    let main = with(&job, &[("AWS_BATCH_JOB_NODE_INDEX", "2")]);
    assert_eq!(place(&main), (0, 3, "AWS Batch", format!("0.0.0.0:{PORT}")));
    assert_eq!(child("0"), (2, 3, "AWS Batch", format!("172.31.4.2:{PORT}")));
    assert_eq!(child("1"), (1, 3, "AWS Batch", format!("172.31.4.2:{PORT}")));
    let lost = [&job[..], &[("AWS_BATCH_JOB_NODE_INDEX", "1")]].concat();
    assert!(refused(&lost).starts_with("AWS Batch: QUELEA_RENDEZVOUS is not set"));
}
