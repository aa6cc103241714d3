//! A module's trained parameters as one flat vector, and back.
//!
//! The last parameter of the module comes first: gradients become final in this order.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Gradients, Tensor, TensorData};
use quelea::layout;

/// The trained parameters of a module: what they are called, and their values.
#[derive(Debug, Default)]
pub(crate) struct Flattened {
    /// In the order of the vector.
    pub(crate) tensors: Vec<layout::Tensor>,
    pub(crate) values: Vec<f32>,
    /// Parameters that are not `f32`, by name.
    pub(crate) unsupported: Vec<String>,
}

impl Flattened {
    pub(crate) fn of<M: Module>(module: &M) -> Flattened {
        let mut reader = ParameterReader::default();
        module.visit(&mut reader);
        reader.found.reverse();
        let values = reader.found.iter().flat_map(|(_, values)| values).copied().collect();
        let tensors = reader.found.into_iter().map(|(tensor, _)| tensor).collect();
        Flattened { tensors, values, unsupported: reader.unsupported }
    }
}

/// Reads parameters, in the order of the module.
#[derive(Default)]
struct ParameterReader {
    path: Vec<String>,
    found: Vec<(layout::Tensor, Vec<f32>)>,
    unsupported: Vec<String>,
}

impl ModuleVisitor for ParameterReader {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let name = self.path.join(".");
        let value = param.base();
        if value.dtype() != DType::F32 {
            return self.unsupported.push(name);
        }
        let shape = value.shape().as_slice().to_vec();
        self.found.push((layout::Tensor { name, shape }, floats(&value.into_data()).to_vec()));
    }
}

/// The module with these values of its trained parameters.
pub(crate) fn load<M: Module>(module: M, values: &[f32]) -> M {
    let mut writer = ParameterWriter { rest: values };
    let module = module.map(&mut writer);
    assert!(writer.rest.is_empty(), "the module has fewer parameters than the vector");
    module
}

/// Writes parameters, in the order of the module: from the end of the vector.
struct ParameterWriter<'a> {
    rest: &'a [f32],
}

impl ModuleMapper for ParameterWriter<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        param.map(|old| {
            let count = old.shape().num_elements();
            let (rest, values) = self.rest.split_at(self.rest.len() - count);
            self.rest = rest;
            let device = old.device();
            // Without a copy where nobody else holds the tensor: the memory of the last step is written again.
            let mut data = old.into_data();
            let memory = data.as_mut_slice().expect("only parameters of f32 are trained");
            memory.copy_from_slice(values);
            Tensor::from_data(data, &device).require_grad()
        })
    }
}

/// Writes the gradients of a module's trained parameters into a vector; zeros where there is none.
pub(crate) fn store<M: Module>(module: &M, gradients: Gradients, into: &mut [f32]) {
    let end = into.len();
    module.visit(&mut GradientReader { gradients, into, end });
}

/// Reads gradients, in the order of the module: to the end of the vector first.
struct GradientReader<'a> {
    gradients: Gradients,
    into: &'a mut [f32],
    end: usize,
}

impl ModuleVisitor for GradientReader<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let value = param.base();
        let start = self.end - value.shape().num_elements();
        let into = &mut self.into[start..self.end];
        self.end = start;
        match value.grad_remove(&mut self.gradients) {
            Some(gradient) => into.copy_from_slice(floats(&gradient.into_data())),
            None => into.fill(0.0),
        }
    }
}

fn floats(data: &TensorData) -> &[f32] {
    data.as_slice().expect("only parameters of f32 are trained")
}
