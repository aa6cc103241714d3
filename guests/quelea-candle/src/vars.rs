//! A model's variables as one flat vector, and back.

use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, Var, bail};
use candle_nn::VarMap;
use quelea::layout;

/// The variables of one model, by name.
pub(crate) struct Vars {
    by_name: BTreeMap<String, Var>,
}

impl Vars {
    /// Those of a map. An error names one that is not `f32`.
    pub(crate) fn of(map: &VarMap) -> Result<Vars> {
        let data = map.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let by_name: BTreeMap<String, Var> =
            data.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
        if let Some((name, var)) = by_name.iter().find(|(_, var)| var.dtype() != DType::F32) {
            bail!("only f32 is trained: `{name}` is {:?}", var.dtype());
        }
        Ok(Vars { by_name })
    }

    /// What they are called, in the order of the vector.
    pub(crate) fn tensors(&self) -> Vec<layout::Tensor> {
        let of_var = |(name, var): (&String, &Var)| layout::Tensor {
            name: name.clone(),
            shape: var.dims().to_vec(),
        };
        self.by_name.iter().map(of_var).collect()
    }

    /// Their values.
    pub(crate) fn values(&self) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        for var in self.by_name.values() {
            values.extend(var.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(values)
    }

    /// Sets their values.
    pub(crate) fn load(&self, mut values: &[f32]) -> Result<()> {
        for var in self.by_name.values() {
            let (own, rest) = values.split_at(var.elem_count());
            var.set(&Tensor::from_slice(own, var.shape(), var.device())?)?;
            values = rest;
        }
        assert!(values.is_empty(), "the model has fewer parameters than the vector");
        Ok(())
    }

    /// Writes their gradients into a vector; zeros where there is none.
    pub(crate) fn store(&self, gradients: &GradStore, mut into: &mut [f32]) -> Result<()> {
        for var in self.by_name.values() {
            let (own, rest) = into.split_at_mut(var.elem_count());
            match gradients.get(var) {
                Some(gradient) => own.copy_from_slice(&gradient.flatten_all()?.to_vec1::<f32>()?),
                None => own.fill(0.0),
            }
            into = rest;
        }
        Ok(())
    }
}
