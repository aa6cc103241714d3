//! Wrong requests, each with the message that a person gets; and what good ones come to.

use super::source::{parse, setting};
use super::*;
use crate::prepared::PreparedRun;

fn prepared(text: &str, settings: &[&str]) -> Result<PreparedRun, RequestError> {
    let table = parse(text).expect("TOML");
    let settings: Vec<ConfigSetting> =
        settings.iter().map(|given| setting(given).expect("key=value")).collect();
    PreparedRun::new(Config::read(table, &settings, None)?)
}

fn refusal(text: &str) -> String {
    match prepared(text, &[]) {
        Ok(_) => format!("accepted: {text}"),
        Err(error) => error.to_string(),
    }
}

/// A configuration, and how the message about it begins.
const WRONG: &[(&str, &str)] = &[
    // Numbers that cannot be.
    ("workers = 0", "`workers` = 0: must be a whole number from 1 to 100000"),
    ("workers = 2.5", "`workers` = 2.5: must be a whole number"),
    ("workers = \"many\"", "`workers` = \"many\": must be a whole number"),
    ("workers = 1979-05-27", "`workers` = 1979-05-27: must be a whole number"),
    ("steps = 0", "`steps` = 0: must be a whole number from 1"),
    ("seed = -1", "`seed` = -1: must be a whole number from 0"),
    ("epochs = 0", "`epochs` = 0: must be a number above 0"),
    ("optimizer.lr = -0.1", "`optimizer.lr` = -0.1: must be a number from 0"),
    ("optimizer.lr = nan", "`optimizer.lr` = nan: must be a number from 0"),
    ("optimizer.lr = inf", "`optimizer.lr` = inf: must be a number from 0"),
    ("optimizer.nesterov = true", "`optimizer.nesterov` = true: needs `momentum` above 0"),
    ("algorithm.alpha = 1.5", "`algorithm.alpha` = 1.5: must be"),
    ("algorithm.period = 0", "`algorithm.period` = 0: must be a whole number from 1"),
    ("buckets.size_mb = -1", "`buckets.size_mb` = -1: must be a number from 0"),
    ("cluster.bandwidth_gbps = 0", "`cluster.bandwidth_gbps` = 0: must be a number from"),
    (
        "cluster.bandwidth_gbps = -1",
        "`cluster.bandwidth_gbps` = -1: must be a number from 0.000001",
    ),
    (
        "cluster.bandwidth_gbps = 1e10",
        "`cluster.bandwidth_gbps` = 10000000000.0: must be a number f",
    ),
    ("cluster.latency_us = nan", "`cluster.latency_us` = nan: must be a number"),
    ("cluster.backward_share = 2", "`cluster.backward_share` = 2: must be a number from 0 to 1"),
    ("cluster.slow = { \"3\" = 0 }", "`cluster.slow` = { 3 = 0 }: the value of 3 must be"),
    // Names and keys that do not exist.
    ("worker = 4", "`worker` = 4: unknown key; did you mean `workers`?"),
    ("lr = 0.1", "`lr` = 0.1: unknown key; did you mean `optimizer.lr`?"),
    ("learning_rate = 0.1", "`learning_rate` = 0.1: unknown key; did you mean `optimizer.lr`?"),
    (
        "optimizer.learning_rate = 0.1",
        "`optimizer.learning_rate` = 0.1: unknown key; did you mean `optimizer.lr`?",
    ),
    ("batch_size = 8", "`batch_size` = 8: unknown key; did you mean `task.batch`?"),
    (
        "algorithm = { payload = \"gradient\", barrier = true }",
        "`algorithm` = { barrier = true, payload = \"gradient\" }: `barrier` needs payload",
    ),
    ("tusk.name = 1", "`tusk` = { name = 1 }: unknown key; did you mean `task`?"),
    (
        "algorithm.name = \"aladin\"",
        "`algorithm.name` = \"aladin\": unknown name; did you mean \"aladdin\"? known are",
    ),
    ("algorithm.name = 3", "`algorithm.name` = 3: must be a name, one of"),
    ("algorithm = \"asp\"", "`algorithm` = \"asp\": must be a table: [algorithm]; did you mean"),
    ("algorithm.alhpa = 1", "`algorithm.alhpa` = 1: unknown key; did you mean `algorithm.alpha`?"),
    (
        "algorithm = { name = \"allreduce\", alpha = 0.3 }",
        "`algorithm.alpha` = 0.3: unknown key; it is a key of aladdin; allowed here are",
    ),
    (
        "topology.name = \"rign\"",
        "`topology.name` = \"rign\": unknown name; did you mean \"ring\"?",
    ),
    (
        "optimizer.schedule.name = \"cosin\"",
        "`optimizer.schedule.name` = \"cosin\": unknown name; did you mean \"cosine\"?",
    ),
    (
        "optimizer.schedule.warmup = 5",
        "`optimizer.schedule.warmup` = 5: unknown key; did you mean \
         `optimizer.schedule.warmup_steps`?",
    ),
    ("optimizer.schedule = 3", "`optimizer.schedule` = 3: must be a table: [optimizer.schedule]"),
    (
        "codec.name = \"f15\"",
        "`codec.name` = \"f15\": unknown name; did you mean \"f16\"? known are bf16, f16, f32, power-sgd, \
         qsgd, random-k, sign, tern-grad, top-k, unbiased-k",
    ),
    ("codec.share = 0.1", "`codec.share`"),
    ("task.partition = \"idd\"", "`task.partition` = \"idd\": must be one of iid, dirichlet"),
    ("cluster.bandwith_gbps = 1", "`cluster.bandwith_gbps` = 1: unknown key; did you mean"),
    ("cluster.faults.crash = []", "`cluster.faults.crash` = []: unknown key; did you mean"),
    (
        "cluster.faults.crashes = [{ rank = 1, when_ms = 1 }]",
        "`cluster.faults.crashes.0.when_ms` = 1: unknown key; allowed are rank, at_ms",
    ),
    (
        "cluster.faults.pauses = [{ rank = 1, from_ms = 5, until_ms = 9 }, { rank = 1, \
         from_ms = 5, until_ms = 3 }]",
        "`cluster.faults.pauses.1.until_ms` = 3: must be after `from_ms` = 5",
    ),
    (
        "cluster.faults.pauses = [{ rank = 1 }]",
        "`cluster.faults.pauses.0` = { rank = 1 }: needs `until_ms`",
    ),
    (
        "cluster.faults.crashes = [{ at_ms = 1 }]",
        "`cluster.faults.crashes.0` = { at_ms = 1 }: needs",
    ),
    (
        "cluster.faults.crashes = [{ rank = 1, at_ms = 1e10 }]",
        "`cluster.faults.crashes.0.at_ms` = 10000000000.0: must be a number from 0 to 3000000000",
    ),
    (
        "cluster.faults.rules = [{ verdict = \"delay\" }]",
        "`cluster.faults.rules.0` = { verdict = \"delay\" }: needs `delay_ms`",
    ),
    ("cluster.faults.rules = [{ share = 2 }]", "`cluster.faults.rules.0.share` = 2: must be"),
    ("cluster.faults.rules = [{ to = 9 }]", "`cluster.faults.rules.0.to` = 9: there are 9 ranks"),
    ("cluster.faults.rules = [{ kind = 1 }]", "`cluster.faults.rules.0.kind` = 1: unknown key"),
    (
        "cluster.faults.cuts = [{ rank = 1 }]",
        "`cluster.faults.cuts` = [{ rank = 1 }]: was renamed; write `cluster.faults.partitions`",
    ),
    ("cluster.faults.pauses = 3", "`cluster.faults.pauses` = 3: must be a list of tables"),
    // What does not go together.
    ("steps = 5\nepochs = 5", "`epochs` = 5: `steps` is given too"),
    ("cluster.hosts = 9", "`cluster.hosts` = 9: must be at most `workers` = 8"),
    ("cluster.slow = { \"8\" = 2 }", "`cluster.slow` = { 8 = … }: there are 8 workers"),
    ("cluster.slow = { \"03\" = 2 }", "`cluster.slow` = { 03 = 2 }: must be a table from number"),
    ("cluster.slow = [1, 2]", "`cluster.slow` = [1, 2]: must be a table"),
    ("cluster.servers = 0", "`cluster.servers` = 0: `aladdin` needs at least 1 server"),
    ("cluster.server_hosts = [1, 2]", "`cluster.server_hosts` = [1, 2]: must name one host"),
    ("cluster.server_hosts = [9]", "`cluster.server_hosts` = [9]: hosts are whole numbers"),
    (
        "cluster.faults.crashes = [{ rank = 9, at_ms = 1 }]",
        "`cluster.faults.crashes.0.rank` = 9: there are 9 ranks",
    ),
    (
        "algorithm.name = \"sync-ps\"\ncluster.servers = 2\noptimizer.clip_norm = 1",
        "`optimizer.clip_norm` = 1: `sync-ps` clips at its servers, and each of 2 sees only",
    ),
    (
        "workers = 7\nalgorithm.name = \"d-psgd\"\ntopology.name = \"bipartite-exponential\"",
        "`topology.name` = \"bipartite-exponential\": `bipartite-exponential` needs",
    ),
    (
        "algorithm.name = \"d-psgd\"\ntopology.name = \"custom\"",
        "`topology.file` = \"\": `custom` needs `file`",
    ),
    (
        "algorithm.name = \"d-psgd\"\ntopology = { name = \"custom\", file = \"not/there\" }",
        "`topology.file` = \"not/there\": no such file",
    ),
    (
        "cluster.servers = 32\ntask.name = \"logistic\"",
        "`cluster.servers` = 32: the model has 31 parameters, so that some servers",
    ),
    (
        "algorithm.payload = \"gradient\"\noptimizer.momentum = 0.9",
        "`optimizer.momentum` = 0.9: `aladdin`: with `algorithm.payload` = \"gradient\" the servers",
    ),
    (
        "algorithm.payload = \"gradient\"\noptimizer.name = \"adam\"",
        "`optimizer.name` = \"adam\": `aladdin`: with `algorithm.payload` = \"gradient\" the servers",
    ),
    (
        "workers = 600\ntask.name = \"logistic\"",
        "`workers` = 600: 455 training samples are too few",
    ),
    // Tasks and their files.
    (
        "task.name = \"logistic\"\ntask.data = \"not/there\"",
        "`task.data` = \"not/there\": no such file",
    ),
    (
        "task.name = \"logistic\"\ntask.data = \"src\"",
        "`task.data` = \"src\": is a folder, not a file",
    ),
    (
        "task.name = \"logistic\"\ntask.data = \"Cargo.toml\"",
        "`task.data` = \"Cargo.toml\": is not a LIBSVM file: line 1",
    ),
    (
        "task.name = \"logistic\"\ntask.test = \"not/there\"",
        "`task.test` = \"not/there\": no such file",
    ),
    (
        "data = \"shared\"\nalgorithm.name = \"allreduce\"",
        "`data` = \"shared\": `allreduce` with these options gives every worker as many steps",
    ),
    (
        "data = \"shared\"\nalgorithm.name = \"asp\"\ntask.name = \"quadratic\"",
        "`data` = \"shared\": what it trains has no data that every epoch goes through once",
    ),
    (
        "data = \"shared\"\nalgorithm.name = \"asp\"\ntask = { name = \"logistic\", partition = \"dirichlet\" }",
        "`data` = \"shared\": `task.partition` divides the data",
    ),
    (
        "epochs = 2\ntask.name = \"quadratic\"",
        "`epochs` = 2: the task `quadratic` has no data to go through",
    ),
    (
        "task = { name = \"quadratic\", curvature = [[1], [2]] }",
        "`task.curvature` = [[1], [2]]: `curvature` has 2 rows",
    ),
    (
        "workers = 1\ntask = { name = \"quadratic\", curvature = [[1, 2]], target = [[1]] }",
        "`task.target` = [[1]]: ",
    ),
    (
        "workers = 1\ntask = { name = \"quadratic\", curvature = [1, 2] }",
        "`task.curvature` = [1, 2]: must be a list of rows",
    ),
    (
        "workers = 1\ntask = { name = \"quadratic\", curvature = [[inf]] }",
        "`task.curvature` = [[inf]]: must be a list of rows of finite numbers",
    ),
];

#[test]
fn wrong_requests_name_the_field_the_value_and_what_is_allowed() {
    let other = |(text, expected): &(&str, &str)| {
        let message = refusal(text);
        let differs = !message.starts_with(expected);
        differs.then(|| format!("{text}\n  gives  {message}\n  not    {expected}\n"))
    };
    let others: Vec<String> = WRONG.iter().filter_map(other).collect();
    assert!(others.is_empty(), "{}", others.join("\n"));
}

#[test]
fn a_message_repeats_only_the_beginning_of_a_long_value() {
    let rows = vec!["[1.0]"; 100].join(", ");
    let message = refusal(&format!("task = {{ name = \"quadratic\", curvature = [{rows}] }}"));
    assert!(message.contains("…: `curvature` has 100 rows"), "{message}");
    assert!(message.len() < 200, "{message}");
}

#[test]
fn nothing_said_is_the_default_of_the_manual() {
    let prepared = prepared("", &[]).expect("good");
    let config = prepared.config.resolved();
    assert_eq!(config["seed"], 1);
    assert_eq!(config["workers"], 8);
    assert_eq!(config["steps"], 2000);
    assert_eq!(config["algorithm"]["name"], "aladdin");
    assert_eq!(config["algorithm"]["alpha"], 0.5);
    assert_eq!(config["algorithm"]["period"], 4);
    assert_eq!(config["topology"]["name"], "ring");
    assert_eq!(config["optimizer"]["name"], "sgd");
    assert_eq!(config["optimizer"]["lr"], 0.05);
    assert_eq!(config["optimizer"]["schedule"]["name"], "constant");
    assert_eq!(config["codec"]["name"], "f32");
    assert_eq!(config["buckets"]["size_mb"], 25.0);
    assert_eq!(config["task"]["batch"], 32);
    assert_eq!(config["cluster"]["hosts"], 8);
    assert_eq!(config["cluster"]["server_hosts"], serde_json::json!([8]));
    assert_eq!(config["cluster"]["backward_share"], 0.67);
    assert_eq!(prepared.setup.view.hosts.to_vec(), (0..9).collect::<Vec<u32>>());
}

#[test]
fn the_file_of_the_manual_is_understood_word_for_word() {
    let text = "
        seed = 1
        workers = 8
        steps = 2000
        [algorithm]
        name = \"aladdin\"
        alpha = 0.5
        period = 4
        [topology]
        name = \"ring\"
        [optimizer]
        name = \"sgd\"
        lr = 0.05
        momentum = 0.0
        nesterov = false
        weight_decay = 0.0
        [optimizer.schedule]
        name = \"constant\"
        [codec]
        name = \"f32\"
        [buckets]
        size_mb = 25.0
        [task]
        name = \"logistic\"
        batch = 32
        partition = \"iid\"
        [cluster]
        hosts = 8
        bandwidth_gbps = 10.0
        latency_us = 50.0
        internal_gbps = 100.0
        compute_ms = 100.0
        compute_cv = 0.0
        backward_share = 0.67
        slow = { \"3\" = 10.0 }
        servers = 1";
    let prepared = prepared(text, &[]).expect("good");
    assert_eq!(prepared.cluster.slow, [(3, 10.0)].into());
    assert_eq!(prepared.config.resolved()["cluster"]["slow"]["3"], 10.0);
}

#[test]
fn the_default_of_every_key_of_the_cluster_is_that_of_the_virtual_cluster() {
    let given = cluster::build(&cluster::read(&Table::new()).expect("good")).expect("good");
    assert_eq!(format!("{given:?}"), format!("{:?}", quelea_sim::Cluster::default()));
}

#[test]
fn what_was_understood_is_a_configuration_that_is_understood_the_same() {
    let text = "epochs = 1.5\nworkers = 3\n[task]\nname = \"logistic\"\npartition = \"dirichlet\"\n[cluster]\nhosts = 2
        slow = { \"1\" = 2.0 }\nfaults.crashes = [{ rank = 2, at_ms = 1e9 }]";
    let prepared = prepared(text, &[]).expect("good");
    let again = PreparedRun::from_job(&Registry::builtin(), &prepared.job()).expect("good");
    assert_eq!(again.config.resolved(), prepared.config.resolved());
    assert_eq!(prepared.setup.steps, (1.5 * f64::from(455u32.div_ceil(3 * 32))).ceil() as u64);
    assert_eq!(prepared.setup.view.hosts.to_vec(), [0, 0, 1, 2]);
}

#[test]
fn a_quadratic_given_by_rows_is_understood_by_another_process_too() {
    let text = "workers = 2
        task = { name = \"quadratic\", curvature = [[1, 2], [3, 4]], target = [[0, 1], [1, 0]] }";
    let prepared = prepared(text, &[]).expect("good");
    let again = PreparedRun::from_job(&Registry::builtin(), &prepared.job()).expect("good");
    assert_eq!((prepared.problem.dimensions(), again.problem.dimensions()), (2, 2));
}

#[test]
fn a_topology_that_nobody_uses_is_mentioned_if_it_was_asked_for() {
    let notes =
        |set: &[&str]| prepared("topology.name = \"torus\"", set).expect("good").config.notes;
    assert_eq!(notes(&[]), [""; 0]);
    let note = "`topology` is not used: aladdin has none";
    assert_eq!(notes(&["topology.name=star"]), [note]);
    assert_eq!(notes(&["topology.name=star", "algorithm.name=d-psgd"]), [""; 0]);
}

#[test]
fn another_algorithm_by_set_drops_the_keys_that_were_meant_for_the_old_one() {
    let text = "[algorithm]\nname = \"aladdin\"\nalpha = 0.3\n[optimizer]\nlr = 0.2";
    let prepared = prepared(text, &["algorithm.name=allreduce"]).expect("good");
    assert_eq!(prepared.config.algorithm.entry.meta.name, "allreduce");
    let note = "`algorithm.alpha` of the file is not used: allreduce has no such key";
    assert_eq!(prepared.config.notes, [note]);
    let refused = self::prepared(text, &["algorithm.name=allreduce", "algorithm.alpha=0.3"]);
    let message = refused.err().expect("alpha was asked for").to_string();
    assert!(message.starts_with("`algorithm.alpha` = 0.3: unknown key; it is a key of aladdin"));
    let refused = self::prepared("[algorithm]\nalhpa = 0.3", &["algorithm.name=allreduce"]);
    assert!(refused.is_err(), "a slip stays a slip");
}

#[test]
fn settings_win_over_the_file_and_later_ones_over_earlier_ones() {
    let prepared = prepared("workers = 2\n[optimizer]\nlr = 0.1", &["workers=3", "workers=4"]);
    let config = prepared.expect("good").config;
    assert_eq!((config.workers, config.optimizer.options().real("lr")), (4, 0.1));
    assert_eq!(self::prepared("steps = 9", &["epochs=1"]).expect("good").epochs, Some(1.0));
    assert_eq!(self::prepared("epochs = 9", &["steps=5"]).expect("good").setup.steps, 5);
    assert!(self::prepared("", &["steps=5", "epochs=1"]).is_err(), "one of them must give way");
}

#[test]
fn servers_live_on_hosts_of_their_own_unless_they_are_placed() {
    let hosts = |text: &str| prepared(text, &[]).expect("good").setup.view.hosts.to_vec();
    assert_eq!(hosts("workers = 4\ncluster = { hosts = 2, servers = 2 }"), [0, 0, 1, 1, 2, 3]);
    let placed = "workers = 4\ncluster = { hosts = 2, servers = 2, server_hosts = [0, 1] }";
    assert_eq!(hosts(placed), [0, 0, 1, 1, 0, 1]);
    assert_eq!(hosts("workers = 3\nalgorithm.name = \"allreduce\""), [0, 1, 2]);
}

#[test]
fn buckets_are_cut_in_megabytes_of_a_million_bytes() {
    let buckets = |size: &str| {
        let text = format!("task = {{ name = \"quadratic\", dimensions = 1000 }}\n{size}");
        prepared(&text, &[]).expect("good").setup.layout.buckets.len()
    };
    assert_eq!(buckets("buckets.size_mb = 0.001"), 4);
    assert_eq!(buckets("buckets.size_mb = 0"), 1);
    assert_eq!(buckets(""), 1);
}

#[test]
fn a_launcher_decides_the_number_of_workers_unless_the_file_does() {
    let workers =
        |text| Config::read(parse(text).expect("TOML"), &[], Some(4)).expect("good").workers;
    assert_eq!((workers(""), workers("workers = 2")), (4, 2));
}

#[test]
fn a_method_refuses_a_topology_on_which_it_could_diverge() {
    let refusal = |algorithm: &str, topology: &str| {
        let text = format!("algorithm.name = \"{algorithm}\"\ntopology.name = \"{topology}\"");
        prepared(&text, &["workers=8"]).err().map(|error| error.to_string())
    };
    let message = refusal("extra", "one-peer-ring").expect("refused");
    assert!(message.starts_with("`topology.name` = \"one-peer-ring\": `extra` needs the same"));
    assert!(message.contains("its rounds change from step to step"), "{message}");
    let message = refusal("d2", "exponential").expect("refused");
    assert!(message.contains("its weights differ between the two directions"), "{message}");
    let message = refusal("d2", "torus").expect("refused");
    assert!(message.contains("without eigenvalues below −1/3"), "{message}");
    assert_eq!(refusal("exact-diffusion", "torus"), None);
    assert_eq!(refusal("gradient-tracking", "one-peer-exponential"), None);
}
