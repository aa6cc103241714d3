//! A layer of long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et
//! al. 2000): gates in PyTorch's order, input, forget, cell, output.

use crate::matrix::{Matrix, Onto, multiply};
use crate::parameters::{Builder, Init, Param};
use crate::tape::{Tape, TapeValue, tensor};

/// Runs over sequences from left to right, from a state of zeros.
#[derive(Clone, Copy, Debug)]
pub struct Lstm {
    inputs: usize,
    width: usize,
    /// `[4 · width, inputs]`.
    from_input: Param,
    /// `[4 · width, width]`.
    from_state: Param,
    bias: Param,
}

/// Gates of a cell.
const GATES: usize = 4;

impl Lstm {
    /// Declares `weight_ih`, `weight_hh` and `bias`, all with PyTorch's start.
    pub fn new(builder: &mut Builder, inputs: usize, width: usize) -> Lstm {
        let init = Init::Uniform { bound: 1.0 / (width as f64).sqrt() };
        Lstm {
            inputs,
            width,
            from_input: builder.param("weight_ih", &[GATES * width, inputs], init),
            from_state: builder.param("weight_hh", &[GATES * width, width], init),
            bias: builder.param("bias", &[GATES * width], init),
        }
    }
}

/// What a forward pass leaves for the backward one, place by place of the sequence: `[length, batch, …]`.
struct Memory {
    /// After their functions: input, forget, cell, output.
    gates: Vec<f32>,
    /// The cells' states, and the hyperbolic tangent of each.
    cells: Vec<f32>,
    squashed: Vec<f32>,
    /// What the layer puts out.
    states: Vec<f32>,
}

impl Tape<'_> {
    /// The states of the layer over `x`, `[batch, length, inputs]`: `[batch, length, width]`.
    pub fn lstm(&mut self, x: &TapeValue, layer: &Lstm) -> TapeValue {
        let Lstm { inputs, width, from_input, from_state, bias } = *layer;
        let &[batch, length, given] = x.shape() else { panic!("sequences have three axes") };
        assert_eq!(given, inputs, "the last axis is what the layer takes");
        let by_place = to_places(x.values(), batch, length);
        let weights = self.param(from_input);
        let mut sums = Vec::with_capacity(batch * length * GATES * width);
        (0..batch * length).for_each(|_| sums.extend_from_slice(self.param(bias)));
        let rows = Matrix::new(&by_place, batch * length, inputs);
        let weights = Matrix::new(weights, GATES * width, inputs);
        multiply(rows, weights.transposed(), Onto::Itself, &mut sums);
        let memory = run(sums, self.param(from_state), batch, length, width);
        let y = to_sequences(&memory.states, batch, length);
        let slot = x.slot();
        let writes = [from_input, from_state, bias];
        self.record(&writes, tensor(y, &[batch, length, width]), move |dy, backward| {
            let dy = to_places(dy.values(), batch, length);
            let (weights, grad) = backward.param(from_state);
            let slopes = run_back(&memory, &dy, weights, grad, [batch, length, width]);
            let grad = backward.param(bias).1;
            for row in slopes.chunks_exact(GATES * width) {
                grad.iter_mut().zip(row).for_each(|(sum, slope)| *sum += slope);
            }
            let (weights, grad) = backward.param(from_input);
            let upstream = Matrix::new(&slopes, batch * length, GATES * width);
            let rows = Matrix::new(&by_place, batch * length, inputs);
            multiply(upstream.transposed(), rows, Onto::Itself, grad);
            if slot.asked() {
                let mut dx = vec![0.0; batch * length * inputs];
                let weights = Matrix::new(weights, GATES * width, inputs);
                multiply(upstream, weights, Onto::Nothing, &mut dx);
                let dx = to_sequences(&dx, batch, length);
                backward.add(slot, tensor(dx, &[batch, length, inputs]));
            }
        })
    }
}

/// Place after place: `sums` has what the input adds to every gate.
fn run(mut sums: Vec<f32>, weights: &[f32], batch: usize, length: usize, width: usize) -> Memory {
    let size = batch * width;
    let mut memory = Memory {
        gates: Vec::new(),
        cells: vec![0.0; length * size],
        squashed: vec![0.0; length * size],
        states: vec![0.0; length * size],
    };
    for place in 0..length {
        let sums = &mut sums[place * GATES * size..][..GATES * size];
        if place > 0 {
            let before = &memory.states[(place - 1) * size..][..size];
            let weights = Matrix::new(weights, GATES * width, width);
            let rows = Matrix::new(before, batch, width);
            multiply(rows, weights.transposed(), Onto::Itself, sums);
        }
        for row in 0..batch {
            let gates = &mut sums[row * GATES * width..][..GATES * width];
            for k in 0..width {
                let at = place * size + row * width + k;
                let before = if place > 0 { memory.cells[at - size] } else { 0.0 };
                for gate in [0, 1, 3] {
                    gates[gate * width + k] = sigmoid(gates[gate * width + k]);
                }
                gates[2 * width + k] = gates[2 * width + k].tanh();
                let [input, forget, cell, output] =
                    [0, 1, 2, 3].map(|gate| gates[gate * width + k]);
                memory.cells[at] = forget * before + input * cell;
                memory.squashed[at] = memory.cells[at].tanh();
                memory.states[at] = output * memory.squashed[at];
            }
        }
    }
    memory.gates = sums;
    memory
}

/// The slopes of the gates' sums, `[length, batch, 4 · width]`, from the last place to the first; adds to
/// the gradient of `weights`. The sizes are batch, length and width.
fn run_back(
    memory: &Memory,
    dy: &[f32],
    weights: &[f32],
    grad: &mut [f32],
    [batch, length, width]: [usize; 3],
) -> Vec<f32> {
    let size = batch * width;
    let mut slopes = vec![0.0; length * GATES * size];
    // What later places ask of the state and of the cell.
    let (mut of_state, mut of_cell) = (vec![0.0; size], vec![0.0; size]);
    for place in (0..length).rev() {
        let slopes = &mut slopes[place * GATES * size..][..GATES * size];
        for row in 0..batch {
            let gates = &memory.gates[(place * batch + row) * GATES * width..][..GATES * width];
            for k in 0..width {
                let (at, own) = (place * size + row * width + k, row * width + k);
                let [input, forget, cell, output] =
                    [0, 1, 2, 3].map(|gate| gates[gate * width + k]);
                let before = if place > 0 { memory.cells[at - size] } else { 0.0 };
                let squashed = memory.squashed[at];
                let state = dy[at] + of_state[own];
                let slope = of_cell[own] + state * output * (1.0 - squashed * squashed);
                of_cell[own] = slope * forget;
                let sums = [
                    slope * cell * input * (1.0 - input),
                    slope * before * forget * (1.0 - forget),
                    slope * input * (1.0 - cell * cell),
                    state * squashed * output * (1.0 - output),
                ];
                for (gate, sum) in sums.into_iter().enumerate() {
                    slopes[row * GATES * width + gate * width + k] = sum;
                }
            }
        }
        if place > 0 {
            let upstream = Matrix::new(slopes, batch, GATES * width);
            let before = Matrix::new(&memory.states[(place - 1) * size..][..size], batch, width);
            multiply(upstream.transposed(), before, Onto::Itself, grad);
            let weights = Matrix::new(weights, GATES * width, width);
            multiply(upstream, weights, Onto::Nothing, &mut of_state);
        }
    }
    slopes
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `[batch, length, …]` as `[length, batch, …]`.
fn to_places(values: &[f32], batch: usize, length: usize) -> Vec<f32> {
    exchanged(values, batch, length)
}

/// `[length, batch, …]` as `[batch, length, …]`.
fn to_sequences(values: &[f32], batch: usize, length: usize) -> Vec<f32> {
    exchanged(values, length, batch)
}

/// The first two axes exchanged.
fn exchanged(values: &[f32], first: usize, second: usize) -> Vec<f32> {
    let width = values.len() / (first * second).max(1);
    let mut out = Vec::with_capacity(values.len());
    for b in 0..second {
        for a in 0..first {
            out.extend_from_slice(&values[(a * second + b) * width..][..width]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;
    use crate::tape::PassMode;

    fn fill(count: usize, from: usize) -> Vec<f32> {
        (0..count).map(|k| (((from + 3 * k) % 7) as f32 - 3.0) * 0.2).collect()
    }

    fn close(ours: &[f32], theirs: &[f32]) {
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert!((ours - theirs).abs() < 2e-6, "{ours} is not {theirs}");
        }
    }

    fn small() -> (Lstm, Parameters, Vec<f32>) {
        let mut builder = Builder::default();
        let layer = Lstm::new(&mut builder, 2, 2);
        let parameters = builder.finish();
        let mut params = vec![0.0; parameters.len()];
        for (param, from, count) in
            [(layer.from_input, 1, 16), (layer.from_state, 2, 16), (layer.bias, 3, 8)]
        {
            params[parameters.range(param)].copy_from_slice(&fill(count, from));
        }
        (layer, parameters, params)
    }

    /// `torch.nn.LSTM(2, 2, batch_first=True)` with the same numbers and `bias_hh` = 0.
    #[test]
    fn states_and_gradients_are_those_of_pytorch() {
        let (layer, parameters, params) = small();
        let mut tape = Tape::new(&parameters, &params, PassMode::Train);
        let x = tape.variable(fill(12, 4), &[2, 3, 2]);
        let y = tape.lstm(&x, &layer);
        close(
            y.values(),
            &[
                0.0, -0.043978, -0.129389, 0.146473, -0.198133, 0.195788, -0.112428, 0.117045,
                -0.160552, 0.108583, -0.112476, 0.05057,
            ],
        );
        let mut grad = vec![0.0; params.len()];
        let found = tape.backward_to(&y, fill(12, 5), &mut grad, &[&x]);
        let of = |param: Param| grad[parameters.range(param)].to_vec();
        close(
            &of(layer.from_input),
            &[
                -0.022429, -0.005414, -0.011394, -0.007689, 0.000457, -0.003569, -0.008918,
                0.01112, 0.058774, -0.026219, -0.207942, 0.160026, -0.00461, -0.0166, -0.024396,
                -0.009514,
            ],
        );
        close(
            &of(layer.from_state),
            &[
                -0.005455, 0.005611, -0.002914, 0.00424, -0.004786, 0.003937, -0.003613, 0.003815,
                0.022685, -0.020594, -0.035627, 0.042986, -0.012113, 0.010723, -0.008021, 0.011066,
            ],
        );
        close(
            &of(layer.bias),
            &[0.054175, 0.03043, 0.03493, 0.033396, -0.143015, 0.223401, 0.086445, 0.047379],
        );
        close(
            &found[0],
            &[
                0.00409, -0.140909, 0.048369, -0.088023, -0.024131, 0.112077, -0.046895, 0.168951,
                -0.034734, 0.142471, -0.017154, 0.059828,
            ],
        );
    }
}
