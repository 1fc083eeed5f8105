//! PowerSGD's kernels give the bits of the codec, and those of its sums in blocks.
#![cfg(all(feature = "cuda", target_os = "linux"))]

mod inputs;

use std::iter::zip;

use thinwire_codec::kernel::{add, add_scaled, dot, max_magnitude};
use thinwire_codec::{Finite, PowerSgd as Codec, Write};
use thinwire_device::cuda::arguments::{Address, Arguments, Power};
use thinwire_device::cuda::kernel::{Grid, Kernel, PowerSgd};
use thinwire_device::cuda::simulated::host;
use thinwire_wire::random::Key;

const KEY: Key = Key { seed: 5, step: 0, tensor: 1 };

/// Buffers of a matrix, and the kernels on them.
struct Matrix {
    kernels: PowerSgd,
    values: Vec<f32>,
    residual: Vec<f32>,
    p: Vec<f32>,
    q: Vec<f32>,
    partial: Vec<f32>,
    flag: [u32; 1],
}

fn address<T>(values: &mut [T]) -> Address {
    values.as_mut_ptr() as Address
}

impl Matrix {
    fn new([rows, columns, low_rank]: [u32; 3], q: &[f32]) -> Matrix {
        let kernels = PowerSgd { rows, columns, low_rank };
        let length = (rows * columns) as usize;
        Matrix {
            kernels,
            values: inputs::normal(length, 1),
            residual: inputs::normal(length, 2),
            p: vec![f32::NAN; (rows * low_rank) as usize],
            q: q.to_vec(),
            partial: vec![f32::NAN; kernels.partial_len().max(q.len())],
            flag: [0],
        }
    }

    fn arguments(&mut self) -> Power {
        let PowerSgd { rows, columns, low_rank } = self.kernels;
        Power {
            values: address(&mut self.values),
            p: address(&mut self.p),
            q: address(&mut self.q),
            partial: address(&mut self.partial),
            infinite: address(&mut self.flag),
            rows,
            columns,
            low_rank,
            sign: 1.0,
            length: rows,
            ..Power::default()
        }
    }

    fn project(&mut self, is_balanced: bool) {
        let residual = address(&mut self.residual);
        let mut arguments = Power { residual, ..self.arguments() };
        if !is_balanced {
            launch(PowerSgd::BALANCE, self.kernels.balance(), &arguments, 1);
            arguments.q = arguments.partial;
        }
        launch(PowerSgd::PROJECT, self.kernels.project(), &arguments, 2);
    }

    fn orthonormalise(&mut self) {
        launch(PowerSgd::ORTHONORMALISE, PowerSgd::ONE_BLOCK, &self.arguments(), 3);
    }

    fn project_back(&mut self) {
        let arguments = self.arguments();
        launch(PowerSgd::PROJECT_BACK, self.kernels.project_back(), &arguments, 4);
        launch(PowerSgd::SUM, self.kernels.sum(), &arguments, 5);
    }

    fn product(&mut self, sign: f32, write: Write) {
        let arguments = Power { sign, add: write.into(), ..self.arguments() };
        launch(PowerSgd::PRODUCT, self.kernels.product(), &arguments, 6);
    }
}

/// Runs a kernel on buffers of this test.
fn launch<A: Arguments>(kernel: Kernel, grid: Grid, arguments: &A, seed: u64) {
    // SAFETY: tests name buffers of the lengths that they pass.
    unsafe { host::launch(kernel, grid, arguments, seed) };
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_step_equals_the_codec_where_there_is_one_block_of_sums() {
    if !host::is_there() {
        return;
    }
    for shape @ [rows, columns, low_rank] in
        [[2, 3, 1], [31, 40, 3], [128, 65, 4], [100, 300, 5], [16, 4096, 2], [127, 129, 9]]
    {
        let [rows, columns] = [rows as usize, columns as usize];
        let factor = Codec::new(low_rank as usize).factor(rows, columns, KEY);
        let mut found = Matrix::new(shape, factor.q());
        let (mut values, mut p) = (found.values.clone(), found.p.clone());
        let mut q = vec![0.0; factor.q_len()];
        let finite = factor.project(&mut values, &found.residual, &mut p);
        found.project(false);
        assert_eq!(finite, Finite::from(found.flag == [0]));
        assert_eq!(bits(&found.values), bits(&values), "sums {shape:?}");
        assert_eq!(bits(&found.p), bits(&p), "p {shape:?}");
        factor.project_back(&values, &mut p, &mut q);
        found.orthonormalise();
        found.project_back();
        assert_eq!(bits(&found.p), bits(&p), "orthonormal p {shape:?}");
        assert_eq!(bits(&found.q), bits(&q), "q {shape:?}");
        factor.subtract(&p, &q, &mut values);
        found.product(-1.0, Write::Add);
        assert_eq!(bits(&found.values), bits(&values), "residual {shape:?}");
        factor.reconstruct(&p, &q, &mut values);
        found.product(1.0, Write::Set);
        assert_eq!(bits(&found.values), bits(&values), "gradient {shape:?}");
        assert_eq!(found.flag, [0]);
    }
}

#[test]
fn an_infinite_element_is_reported_and_dependent_vectors_are_replaced() {
    if !host::is_there() {
        return;
    }
    let factor = Codec::new(3).factor(40, 50, KEY);
    let mut matrix = Matrix::new([40, 50, 3], factor.q());
    matrix.values[777] = f32::INFINITY;
    matrix.project(false);
    assert_eq!(matrix.flag, [1]);

    let mut matrix = Matrix::new([40, 50, 3], factor.q());
    matrix.p = [inputs::normal(40, 1), inputs::normal(40, 1), vec![0.0; 40]].concat();
    let (mut p, mut q) = (matrix.p.clone(), vec![0.0; factor.q_len()]);
    factor.project_back(&matrix.values, &mut p, &mut q);
    matrix.orthonormalise();
    assert_eq!(bits(&matrix.p), bits(&p));
}

/// Scalar product: chunks of 4,096 in 32 lanes that are halved, then the chunks in order.
fn chunked_dot(a: &[f32], b: &[f32]) -> f32 {
    zip(a.chunks(4096), b.chunks(4096)).fold(0.0, |sum, (a, b)| sum + dot(a, b))
}

#[test]
fn long_sums_are_those_of_blocks_in_order() {
    if !host::is_there() {
        return;
    }
    for shape @ [rows, columns, low_rank] in [[300, 70, 5], [3, 9000, 2], [257, 4100, 1]] {
        let [rows, columns, vectors] = [rows as usize, columns as usize, low_rank as usize];
        let q = inputs::normal(columns * vectors, 3);
        let mut found = Matrix::new(shape, &q);
        let mut values = found.values.clone();
        add(&mut values, &found.residual);
        found.project(true);
        let products =
            q.chunks(columns).flat_map(|q| values.chunks(columns).map(|row| chunked_dot(row, q)));
        let p: Vec<f32> = products.collect();
        assert_eq!(bits(&found.p), bits(&p), "p {shape:?}");
        found.project_back();
        let mut q = vec![0.0; columns * vectors];
        for (q, p) in zip(q.chunks_mut(columns), p.chunks(rows)) {
            for (values, p) in zip(values.chunks(128 * columns), p.chunks(128)) {
                let mut sums = vec![0.0; columns];
                zip(values.chunks(columns), p).for_each(|(row, p)| add_scaled(&mut sums, row, *p));
                add(q, &sums);
            }
        }
        assert_eq!(bits(&found.q), bits(&q), "q {shape:?}");
    }
}

/// Scales a vector to length 1.
fn normalise(x: &mut [f32]) {
    let exponent = (max_magnitude(x) >> 23).clamp(27, 227);
    x.iter_mut().for_each(|x| *x *= f32::from_bits((254 - exponent) << 23));
    let norm = chunked_dot(x, x).sqrt();
    x.iter_mut().for_each(|x| *x /= norm);
}

#[test]
fn long_vectors_become_orthonormal_by_sums_of_blocks_in_order() {
    if !host::is_there() {
        return;
    }
    let length = 140_000;
    let mut matrix = Matrix::new([length, 1, 2], &[]);
    matrix.p = inputs::normal(2 * length as usize, 1);
    let mut p = matrix.p.clone();
    let (first, second) = p.split_at_mut(length as usize);
    (0..3).for_each(|_| normalise(first));
    normalise(second);
    for _ in 0..2 {
        let along = chunked_dot(first, second);
        add_scaled(second, first, -along);
        normalise(second);
    }
    matrix.orthonormalise();
    assert_eq!(bits(&matrix.p), bits(&p));
}
