//! Where the data sets of experiments lie.

use std::path::{Path, PathBuf};

use quelea_data::{catalogue, files};

use crate::error::ExperimentError;

/// The data set `name` under the folder that a person named: the folder itself, or the one of that
/// name in it.
pub fn under(folder: &Path, name: &str) -> Option<PathBuf> {
    let row = catalogue::find(name).ok()?;
    let holds = |folder: &PathBuf| row.files().any(|file| files::find(folder, file.name).is_some());
    [folder.join(name), folder.to_path_buf()].into_iter().find(holds)
}

/// The data set `name`: under the folder that was named, or where downloads go.
pub fn located(folder: Option<&Path>, name: &'static str) -> Result<PathBuf, ExperimentError> {
    let found = match folder {
        Some(folder) => under(folder, name),
        None => catalogue::home(name).filter(|home| home.is_dir()),
    };
    found.ok_or(ExperimentError::NoData { name })
}

/// `task.data`, as one types it.
pub(crate) fn setting(folder: &Path) -> String {
    format!("task.data={}", toml::Value::from(folder.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_set_is_found_in_its_own_folder_or_in_that_of_all() {
        let all = tempfile::tempdir().expect("a temporary folder");
        let own = all.path().join("multi30k");
        std::fs::create_dir(&own).expect("made");
        assert_eq!(under(all.path(), "multi30k"), None, "an empty folder holds nothing");
        std::fs::write(own.join("train.en.gz"), "").expect("written");
        assert_eq!(under(all.path(), "multi30k"), Some(own.clone()));
        assert_eq!(under(&own, "multi30k"), Some(own.clone()));
        assert_eq!(under(&own, "cifar10"), None);
        let error = located(Some(&own), "cifar10").expect_err("not there").to_string();
        assert!(error.contains("`quelea data get cifar10`"), "{error}");
    }
}
