//! `aborted.safetensors`: the models that the ranks of a run still had when it was broken off.

use std::collections::HashMap;
use std::io;

use quelea_core::properties::DeployedFrom;
use quelea_record::SalvagedModel;

use super::directory::Directory;
use super::tensors::{self, Export, ModelSlices};
use crate::prepared::PreparedRun;

/// The file.
pub const ABORTED: &str = "aborted.safetensors";

/// What is kept of a run that was broken off.
pub(crate) struct Salvaged<'a> {
    pub(crate) prepared: &'a PreparedRun,
    pub(crate) models: Vec<SalvagedModel>,
}

impl Salvaged<'_> {
    /// What one would deploy: the mean of the workers that are left, or the servers' shards if all of
    /// them are there.
    fn deployed(&self) -> Option<Vec<f32>> {
        let of = |is_server| {
            let chosen = self.models.iter().filter(move |one| one.is_server == is_server);
            chosen.map(|one| one.model.as_slice()).collect::<Vec<_>>()
        };
        let models = ModelSlices { workers: of(false), servers: of(true) };
        let deploy = self.prepared.setup.properties().deploy;
        let is_possible = match deploy {
            DeployedFrom::Workers => !models.workers.is_empty(),
            DeployedFrom::Servers => models.servers.len() == self.prepared.config.servers(),
        };
        is_possible.then(|| models.deployed(deploy))
    }

    /// Puts the file in its place. Its metadata has the steps of every rank, as `step.worker.0`.
    pub(crate) fn write(&self, directory: &Directory) -> io::Result<()> {
        self.write_beside(directory, &self.models)
    }

    /// The same without the ranks' own models, where there is one to deploy.
    pub(crate) fn write_alone(&self, directory: &Directory) -> io::Result<()> {
        self.write_beside(directory, &[])
    }

    /// What one would deploy, with these ranks' own models; one of them if there is nothing to deploy.
    fn write_beside(&self, directory: &Directory, own: &[SalvagedModel]) -> io::Result<()> {
        let model = self.deployed();
        let own = if model.is_none() && own.is_empty() { &self.models[..1] } else { own };
        let buffers = model.as_deref().map(|model| self.prepared.problem.buffers(model));
        let (layers, buffers) = (&self.prepared.setup.layout.tensors, buffers.unwrap_or_default());
        let export = model.as_deref().map(|model| Export { model, layers, buffers: &buffers });
        let name = |one: &SalvagedModel| {
            let workers = self.prepared.setup.seats();
            let rank = one.rank.index();
            if one.is_server {
                format!("server.{}", rank - workers)
            } else {
                format!("worker.{rank}")
            }
        };
        let named: Vec<(String, &[f32])> =
            own.iter().map(|one| (name(one), one.model.as_slice())).collect();
        let steps = self.models.iter();
        let about: HashMap<String, String> =
            steps.map(|one| (format!("step.{}", name(one)), one.step.to_string())).collect();
        let mut draft = directory.redraft(ABORTED)?;
        tensors::write_named(&mut draft, export.as_ref(), &named, about)?;
        draft.commit()
    }

    /// "the models of 3 of 4 ranks, after 10 to 12 steps, are"
    pub(crate) fn describe(&self) -> String {
        let (here, all) = (self.models.len(), self.prepared.setup.ranks());
        let steps = self.models.iter().filter(|one| !one.is_server).map(|one| one.step);
        let range = match (steps.clone().min(), steps.max()) {
            (Some(least), Some(most)) if least == most => format!(", after {most} steps,"),
            (Some(least), Some(most)) => format!(", after {least} to {most} steps,"),
            _ => String::new(),
        };
        format!("the models of {here} of {all} ranks{range} are")
    }
}
