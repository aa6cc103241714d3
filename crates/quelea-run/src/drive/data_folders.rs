//! What a joined worker reads, and what it says about it: a coordinator names paths, but the worker's own
//! operator says below which folders they may be, and no content of a file leaves the machine.

use std::path::{Path, PathBuf};

use quelea_net::JobError;

use crate::error::RequestError;

/// The keys of a configuration that name files, with their tables.
const PATH_KEYS: [(&str, &str); 3] = [("task", "data"), ("task", "test"), ("topology", "file")];

/// Refuses a job that names a file outside `folders`. Where it names none, data are read from where
/// `quelea data get` puts them.
pub(super) fn check(job: &[u8], folders: &[PathBuf]) -> Result<(), RequestError> {
    let table: toml::Table = serde_json::from_slice(job)
        .map_err(|_| RequestError::Conflict("the job is not readable".into()))?;
    for (inside, key) in PATH_KEYS {
        let given = table.get(inside).and_then(|inside| inside.get(key));
        let Some(path) = given.and_then(toml::Value::as_str).filter(|path| !path.is_empty()) else {
            continue;
        };
        if !folders.iter().any(|folder| is_below(Path::new(path), folder)) {
            let problem = match folders {
                [] => "the coordinator names a path, and this worker was given no --data DIR \
                       below which it may read"
                    .to_string(),
                _ => "is not below a folder that --data names".to_string(),
            };
            return Err(RequestError::field(format!("{inside}.{key}"), path, problem));
        }
    }
    Ok(())
}

/// Links and `..` count as where they lead.
fn is_below(path: &Path, folder: &Path) -> bool {
    match (path.canonicalize(), folder.canonicalize()) {
        (Ok(path), Ok(folder)) => path.starts_with(folder),
        _ => false,
    }
}

/// Why the job cannot be run here, for this machine in full, and for the coordinator without anything
/// that may have been read from a file.
pub(super) fn job_error(error: &RequestError) -> JobError {
    let told = match error {
        RequestError::Field { path, given, .. } if names_file(path) => {
            format!("`{path}` = {given}: cannot be used there; the worker's own output says why")
        }
        RequestError::File { path, .. } => {
            format!("{}: cannot be used there; the worker's own output says why", path.display())
        }
        other => other.to_string(),
    };
    JobError { reason: error.to_string(), told }
}

fn names_file(path: &str) -> bool {
    PATH_KEYS.iter().any(|(inside, key)| path.split_once('.') == Some((inside, key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinator_cannot_have_files_read_that_the_operator_did_not_name() {
        let folder = std::env::temp_dir().join(format!("quelea-folders-{}", std::process::id()));
        let (inside, outside) = (folder.join("data"), folder.join("private"));
        std::fs::create_dir_all(&inside).expect("a folder");
        std::fs::create_dir_all(&outside).expect("a folder");
        std::fs::write(inside.join("good"), "1 1:1\n").expect("a file");
        std::fs::write(outside.join("key"), "secret\n").expect("a file");
        let check = |path: &Path, folders: &[PathBuf]| {
            let job = serde_json::json!({ "task": { "name": "logistic", "data": path } });
            super::check(job.to_string().as_bytes(), folders).map_err(|error| error.to_string())
        };
        let named = [inside.clone()];
        assert_eq!(check(&inside.join("good"), &named), Ok(()));
        for path in [outside.join("key"), inside.join("../private/key"), "/etc/passwd".into()] {
            let told = check(&path, &named).expect_err("outside");
            assert!(told.ends_with("is not below a folder that --data names"), "{told}");
        }
        assert!(check(&inside.join("good"), &[]).is_err());
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(outside.join("key"), inside.join("link")).expect("a link");
            assert!(check(&inside.join("link"), &named).is_err());
        }
        std::fs::remove_dir_all(&folder).expect("it is there");
    }

    #[test]
    fn nothing_that_was_read_is_told_to_the_coordinator() {
        let error = RequestError::field("task.data", "/data/x", "line 1: `root:x:0` is no number");
        let JobError { reason, told } = job_error(&error);
        assert!(reason.contains("root:x:0"));
        assert_eq!(
            told,
            "`task.data` = /data/x: cannot be used there; the worker's own output says why"
        );
        let other = RequestError::field("workers", 3, "must be even");
        assert_eq!(job_error(&other).told, "`workers` = 3: must be even");
    }
}
