//! PowerSGD on a bucket: two all-reduces of factors.
//!
//! All matrices of a bucket share both messages. A matrix that two factors would not shrink travels
//! whole in the first message. The algebra is `thinwire_codec`'s; here are the ranges of elements.

use std::ops::Range;
use std::task::Waker;

use thinwire_codec::{Finite, PowerSgd};
use thinwire_collective::{Address, Buffer, Run};
use thinwire_device::{Change, Device, FactorStep, Factoring, Source, Work, submit};
use thinwire_wire::World;
use thinwire_wire::random::Key;

use crate::buffer::Tensor;
use crate::exchange::route::Route;
use crate::exchange::{Departure, Exchange, Programs, Progress, is_finite, look};
use crate::{Error, Outcome};

/// The name of a matrix's factor in a checkpoint.
pub(crate) const FACTOR: &str = "factor";

/// One matrix of a bucket.
#[derive(Debug)]
struct Matrix {
    /// The elements in the bucket.
    elements: Range<usize>,
    rows: usize,
    /// The range of `p`, or of the whole matrix if it has no factor, in the first message.
    first: Range<usize>,
    /// The range of `q` in the second message.
    second: Range<usize>,
    /// The subspace that the last step found; `None` if the matrix travels whole.
    q: Option<Tensor>,
}

/// The factors of a bucket, and the programs that carry its two messages.
#[derive(Debug)]
pub(crate) struct LowRank {
    matrices: Vec<Matrix>,
    programs: [Programs; 2],
    world: World,
    underway: Option<Underway>,
    /// Memory of the last step's messages.
    spare: Option<[Tensor; 3]>,
}

/// A step of a bucket between its beginning and its commit.
#[derive(Debug)]
struct Underway {
    values: Tensor,
    residual: Tensor,
    address: Address,
    waker: Waker,
    /// The first message, then its sum over ranks, `p` orthonormal; empty while it is on its way.
    first: Tensor,
    /// This rank's `q`.
    mine: Tensor,
    /// The second message, then its sum over ranks.
    second: Tensor,
    /// Whether the second sum was looked at.
    is_checked: bool,
}

impl LowRank {
    /// Returns new factors, the same on all ranks.
    pub(crate) fn new(codec: PowerSgd, route: &Route<'_>) -> LowRank {
        let (mut first, mut second) = (0, 0);
        let place = |end: &mut usize, length: usize| {
            *end += length;
            *end - length..*end
        };
        let matrices = route.matrices.iter().enumerate();
        let matrices = matrices.map(|(index, (elements, (rows, columns)))| {
            let key = Key { step: index as u64, ..route.key };
            let factor =
                codec.compresses(*rows, *columns).then(|| codec.factor(*rows, *columns, key));
            let first_length = factor.as_ref().map_or(elements.len(), |factor| factor.p_len());
            let second_length = factor.as_ref().map_or(0, |factor| factor.q_len());
            Matrix {
                elements: elements.clone(),
                rows: *rows,
                first: place(&mut first, first_length),
                second: place(&mut second, second_length),
                q: factor.map(|factor| Tensor::Owned(factor.q().to_vec())),
            }
        });
        let matrices = matrices.collect();
        let sum = |length| Programs::new(route.ranks.sum(route.summation, length));
        let programs = [first, second].map(sum);
        LowRank { matrices, programs, world: route.ranks.world, underway: None, spare: None }
    }

    /// Returns memory for the messages and for this rank's `q`, where the values lie.
    fn room(&mut self, values: &Tensor) -> [Tensor; 3] {
        let lengths = [&self.programs[0], &self.programs[1], &self.programs[1]]
            .map(|programs| programs.on_host.elements());
        let id = |tensor: &Tensor| tensor.device().map(Device::id);
        let fits = |spare: &[Tensor; 3]| {
            let same = |tensor: &Tensor| id(tensor) == id(values);
            spare.iter().all(same) && spare.each_ref().map(Tensor::len) == lengths
        };
        let spare = self.spare.take().filter(fits);
        spare.unwrap_or_else(|| {
            lengths.map(|length| match values.device() {
                None => Tensor::Owned(vec![0.0; length]),
                Some(device) => Tensor::Device(device.allocate(length)),
            })
        })
    }

    /// Adds the residual to the values and writes the first message. Returns the run that sums it.
    fn project(&mut self, underway: &mut Underway) -> Run<Tensor> {
        let Underway { values, residual, waker, .. } = underway;
        let mut first = std::mem::take(&mut underway.first);
        let (mut finite, mut checks) = (Finite::Yes, Vec::new());
        for matrix in &mut self.matrices {
            let elements = || matrix.elements.clone();
            let source = residual.source(elements());
            let Some(q) = &mut matrix.q else {
                values.change(elements(), Change::Add(source));
                first.change(matrix.first.clone(), Change::Copy(values.source(elements())));
                continue;
            };
            q.move_beside(values);
            let all = 0..q.len();
            let projected = submit(
                Work::Factor(Factoring {
                    matrix: values.operand(elements()),
                    p: first.operand(matrix.first.clone()),
                    q: q.operand(all),
                    rows: matrix.rows,
                    step: FactorStep::Project(source),
                }),
                waker,
            );
            look(projected, |done| done.finite, &mut finite, &mut checks);
        }
        let program = self.programs[0].of(&first);
        let mut run = Run::new(program, underway.address, self.world, first, None);
        run.check(checks);
        if finite == Finite::No {
            run.mark_nonfinite();
        }
        run
    }

    /// Orthonormalises the sum of the first messages and writes the second message. Returns the run that
    /// sums it.
    fn project_back(&mut self, underway: &mut Underway) -> Run<Tensor> {
        let Underway { values, first, mine, .. } = underway;
        for matrix in self.matrices.iter().filter(|matrix| matrix.q.is_some()) {
            let work = Factoring {
                matrix: values.operand(matrix.elements.clone()),
                p: first.operand(matrix.first.clone()),
                q: mine.operand(matrix.second.clone()),
                rows: matrix.rows,
                step: FactorStep::ProjectBack,
            };
            // A device that has failed fails the run, too.
            submit(Work::Factor(work), Waker::noop());
        }
        let mut second = std::mem::take(&mut underway.second);
        let all = || 0..mine.len();
        second.change(all(), Change::Copy(mine.source(all())));
        let address = Address { tensor: underway.address.tensor + 1, ..underway.address };
        Run::new(self.programs[1].of(&second), address, self.world, second, None)
    }
}

impl Exchange for LowRank {
    fn begin(&mut self, departure: Departure) -> Run<Tensor> {
        let Departure { values, residual, finite, waker, address, .. } = departure;
        let residual = residual.expect("a bucket with factors has a residual");
        let [first, mine, second] = self.room(&values);
        let is_checked = false;
        let mut underway =
            Underway { values, residual, address, waker, first, mine, second, is_checked };
        let mut run = self.project(&mut underway);
        self.underway = Some(underway);
        if finite == Finite::No {
            run.mark_nonfinite();
        }
        run
    }

    fn runs_on(&self, device: &dyn Device) -> bool {
        device.factors()
    }

    fn sent_bytes(&mut self) -> u64 {
        self.programs.iter().map(|programs| programs.on_host.sent_bytes()).sum()
    }

    fn next(&mut self, mut run: Run<Tensor>) -> Progress {
        let mut underway = self.underway.take().expect("a run was begun");
        let measure = |run: &mut Run<Tensor>| {
            let (mut finite, mut checks) = (Finite::Yes, Vec::new());
            // Sums of finite numbers may overflow, on all ranks alike.
            look(run.measure(&underway.waker), is_finite, &mut finite, &mut checks);
            (Finite::from(run.is_finite() && finite == Finite::Yes), checks)
        };
        if run.address().tensor == underway.address.tensor {
            let (finite, checks) = measure(&mut run);
            underway.first = run.into_parts().0;
            let mut second = self.project_back(&mut underway);
            second.check(checks);
            if finite == Finite::No {
                second.mark_nonfinite();
            }
            self.underway = Some(underway);
            return Progress::Run(second);
        }
        if !underway.is_checked {
            let (finite, checks) = measure(&mut run);
            underway.is_checked = true;
            if finite == Finite::No {
                run.mark_nonfinite();
            }
            if !checks.is_empty() {
                run.check(checks);
                self.underway = Some(underway);
                return Progress::Run(run);
            }
        }
        let finite = Finite::from(run.is_finite());
        underway.second = run.into_parts().0;
        self.underway = Some(underway);
        Progress::Done(finite)
    }

    /// Makes the values the new residual, writes the sum over the old one, and keeps the subspace that
    /// was found for the next step.
    fn commit(&mut self, outcome: Outcome) -> Result<(Tensor, Tensor), Error> {
        let underway = self.underway.take().expect("a run is done before it is committed");
        let Underway { mut values, residual: mut sum, mut first, mut mine, mut second, .. } =
            underway;
        if outcome == Outcome::Skipped {
            return Ok((values, sum));
        }
        for matrix in &mut self.matrices {
            let (elements, p) = (|| matrix.elements.clone(), || matrix.first.clone());
            let Some(subspace) = &mut matrix.q else {
                sum.change(elements(), Change::Copy(first.source(p())));
                values.change(elements(), Change::Fill(0.0));
                continue;
            };
            let q = || matrix.second.clone();
            for (matrix_of, vectors, step) in [
                (&mut values, &mut mine, FactorStep::<Source<'_>>::Subtract),
                (&mut sum, &mut second, FactorStep::Reconstruct),
            ] {
                let (matrix_of, vectors) = (matrix_of.operand(elements()), vectors.operand(q()));
                let (p, rows) = (first.operand(p()), matrix.rows);
                let work = Factoring { matrix: matrix_of, p, q: vectors, rows, step };
                submit(Work::Factor(work), Waker::noop());
            }
            let all = 0..subspace.len();
            subspace.change(all, Change::Copy(second.source(q())));
        }
        self.spare = Some([first, mine, second]);
        Ok((sum, values))
    }

    /// Returns the subspace of a matrix, if the matrix has one.
    fn state(&self, matrix: usize) -> Option<(&'static str, Vec<f32>)> {
        self.matrices[matrix].q.as_ref().map(|q| (FACTOR, q.to_host().into_owned()))
    }

    fn load(&mut self, matrix: usize, subspace: &[f32]) {
        if let Some(q) = &mut self.matrices[matrix].q {
            *q = Tensor::Owned(subspace.to_vec());
        }
    }
}
