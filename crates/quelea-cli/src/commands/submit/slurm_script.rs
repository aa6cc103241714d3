//! The text of a batch script for Slurm.

use std::fmt::Write as _;

use crate::request::quoted;

/// A batch script, before it is text.
#[derive(Clone, Debug)]
pub struct SlurmScript {
    /// The job's name.
    pub name: String,
    /// The file of the script, for the jobs that follow.
    pub file: String,
    /// The folder of the run.
    pub out: String,
    /// The run file and its settings, as words of a shell.
    pub run: String,
    /// Nodes that train.
    pub nodes: u32,
    /// Nodes that wait.
    pub spare_nodes: u32,
    /// Workers of every node.
    pub workers_per_node: u32,
    /// GPUs of every node, if the job asks for any.
    pub gpus_per_node: Option<u32>,
    /// The time limit, as Slurm takes it.
    pub time: Option<String>,
    /// Seconds before the limit at which the run is saved.
    pub save_before: u32,
    /// Further options of `sbatch`.
    pub options: Vec<String>,
    /// What is run before anything else.
    pub before: Vec<String>,
    /// The program.
    pub program: String,
}

impl SlurmScript {
    /// The script.
    pub fn text(&self) -> String {
        let mut text = self.directives();
        text.push('\n');
        for command in &self.before {
            let _ = writeln!(text, "{command}");
        }
        let _ = writeln!(text, "out={}", quoted(&self.out));
        let _ = writeln!(text, "script={}", quoted(&self.file));
        let _ = writeln!(text, "train=({} train)", quoted(&self.program));
        let _ = writeln!(text, "run=({})", self.run.trim());
        let spares = self.spare_nodes * self.workers_per_node;
        if spares > 0 {
            let _ = writeln!(text, "export QUELEA_SPARES={spares}");
        }
        text.push_str(BODY);
        text
    }

    /// What `sbatch` reads.
    fn directives(&self) -> String {
        let mut text = String::from(HEAD);
        let mut directive = |option: &str| {
            let _ = writeln!(text, "#SBATCH {option}");
        };
        directive(&format!("--job-name={}", self.name));
        directive(&format!("--nodes={}", self.nodes + self.spare_nodes));
        directive(&format!("--ntasks-per-node={}", self.workers_per_node));
        if let Some(gpus) = self.gpus_per_node {
            directive(&format!("--gpus-per-node={gpus}"));
        }
        if let Some(time) = &self.time {
            directive(&format!("--time={time}"));
        }
        directive(&format!("--signal=B:USR1@{}", self.save_before));
        directive("--requeue");
        directive("--no-kill");
        directive("--open-mode=append");
        directive(&format!("--output={}-%j.out", self.name));
        self.options.iter().for_each(|option| directive(option));
        text
    }
}

const HEAD: &str = "\
#!/bin/bash
# A run of quelea, written by `quelea submit slurm`.
";

/// The same for all runs, so that it can be read once.
const BODY: &str = r#"
# A job of the same chain has finished the run.
if [ -e "$out/summary.json" ]; then
  echo "quelea: the run in $out has finished"
  exit 0
fi

# The steps of the newest checkpoint.
newest() {
  for folder in "$out"/checkpoints/step-*; do
    echo "${folder##*/step-}"
  done | grep -x '[0-9]*' | sort -n | tail -n 1
}

saved=$(newest)
if [ -n "$saved" ]; then
  words=(--resume "$out")
  echo "quelea: resuming from step $saved"
else
  # What a job that was lost before its first checkpoint has left is replaced.
  words=("${run[@]}" --out "$out" ${SLURM_RESTART_COUNT:+--force})
fi

# Only the processes of this start know it.
QUELEA_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export QUELEA_SECRET

# Slurm sends USR1 to this script some time before the limit; TERM asks rank 0 to save and end.
save() {
  echo "quelea: the time limit is near; saving the run"
  scancel --signal=TERM "$SLURM_JOB_ID"
}
trap save USR1

# Where the node of this script is lost, Slurm keeps the job without its script (--no-kill). A watcher on another node
# has the job requeued then.
watch='while sleep 15; do
  shown=$(scontrol -o show job "$SLURM_JOB_ID") || continue
  host=$(sed "s/.* BatchHost=//; s/ .*//" <<< "$shown")
  nodes=$(sed "s/.* NodeList=//; s/ .*//" <<< "$shown")
  scontrol show hostnames "$nodes" | grep -qx "$host" && continue
  scontrol requeue "$SLURM_JOB_ID" && exit
done'
if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ]; then
  srun --overlap --no-kill --nodes=1 --ntasks=1 --relative=1 bash -c "$watch" 2>/dev/null &
fi

# A task that fails, or a node that is lost, ends nobody else.
srun --no-kill --kill-on-bad-exit=0 --wait=0 --export=ALL --label "${train[@]}" "${words[@]}" &
step=$!
# A signal ends `wait`, not what it waits for. Where a node is lost, `srun` may wait for it for as long as the
# cluster does; the run has ended when its summary is there.
ended=
while kill -0 "$step" 2>/dev/null; do
  sleep 2 &
  wait $!
  if [ -e "$out/summary.json" ]; then
    [ "${ended:=$SECONDS}" -gt $((SECONDS - 15)) ] || break
  fi
done

if [ -e "$out/summary.json" ]; then
  exit 0
fi
wait "$step"
status=$?
now=$(newest)
if [ "$now" = "$saved" ]; then
  echo "quelea: the run ended with status $status and saved nothing new in $out, so the job is not requeued"
  exit $((status ? status : 1))
fi
echo "quelea: saved step $now; the job is requeued and resumes from there"
scontrol requeue "$SLURM_JOB_ID" ||
  sbatch --dependency="afterany:$SLURM_JOB_ID" "$script"
"#;

/// The seconds of a time limit as Slurm writes it; nothing where it is none.
pub fn seconds_of_time(text: &str) -> Option<u64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let parts: Vec<u64> = rest.split(':').map(number).collect::<Option<_>>()?;
    let seconds = match (days, parts.as_slice()) {
        (None, [minutes]) => minutes.checked_mul(60)?,
        (None, [minutes, seconds]) => minutes.checked_mul(60)?.checked_add(*seconds)?,
        (_, [hours, minutes, seconds]) => clock(*hours, *minutes, *seconds)?,
        (Some(_), [hours]) => clock(*hours, 0, 0)?,
        (Some(_), [hours, minutes]) => clock(*hours, *minutes, 0)?,
        _ => return None,
    };
    days.unwrap_or(0).checked_mul(86_400)?.checked_add(seconds)
}

fn clock(hours: u64, minutes: u64, seconds: u64) -> Option<u64> {
    hours.checked_mul(3600)?.checked_add(minutes.checked_mul(60)?)?.checked_add(seconds)
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_are_read_as_slurm_reads_them() {
        let cases = [
            ("30", 1800),
            ("30:15", 1815),
            ("4:00:00", 14_400),
            ("2-12", 216_000),
            ("1-0:30", 88_200),
            ("1-02:03:04", 93_784),
        ];
        for (text, seconds) in cases {
            assert_eq!(seconds_of_time(text), Some(seconds), "{text}");
        }
        for wrong in ["", "x", "-1", "1:2:3:4", "1-", "4h", "+5", "1-2-3", "99999999999999999999"] {
            assert_eq!(seconds_of_time(wrong), None, "{wrong}");
        }
    }
}
