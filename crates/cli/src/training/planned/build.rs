//! The model of a plan, with its gradients, and what ranks make of them.

use anyhow::{Result, anyhow};
use thinwire_model::{Training, backward, fingerprint};
use thinwire_plan::output::PlanFile;
use thinwire_program::Plan;
use thinwire_train::spmd::{GraphModel, Text};

use crate::failure::OrHint;
use crate::source::Source;
use crate::training::job::KeptModel;
use crate::training::model;

/// Everything that is the same on all ranks.
pub struct Built {
    /// The plan as it was read.
    pub file: PlanFile,
    /// The model with its gradients, for one micro-batch.
    pub training: Training,
    /// The plan as it is run.
    pub plan: Plan,
    /// Text inputs of the model.
    pub text: Text,
    source: Source,
    tokens: Option<String>,
}

impl Built {
    /// The model and the plan of a file; perhaps the user says which input is the tokens.
    ///
    /// # Errors
    /// If they do not go together.
    pub fn of(file: PlanFile, tokens: Option<&str>) -> Result<Built> {
        let rows = file.batch / file.micro_batches.max(1);
        let source = Source::open(&file.model)?;
        let graph = source.graph(rows, file.sequence);
        let graph = graph.or_hint("thinwire model show NAME tells what a model is")?;
        let plan = Plan::of_file(&file, &graph).or_hint("make the plan again for this model")?;
        let training = backward(&graph)?;
        plan.check(&training)?;
        let text = Text::new(&graph, tokens).or_hint(
            "a model of text: gpt:layers=4,width=128,heads=4,vocabulary=256,positions=128; \
             --input tokens=NAME says what a model calls its tokens",
        )?;
        let [_, length] = text.sizes();
        if length != file.sequence {
            let (found, planned) = (length, file.sequence);
            let message = format!("the model reads {found} tokens of a sequence, the plan's have");
            return Err(anyhow!("{message} {planned}"))
                .or_hint("a model file says its own length as \"sequence\"; then plan again");
        }
        Ok(Built { file, training, plan, text, source, tokens: tokens.map(str::to_owned) })
    }

    /// Whether it is the plan of this model and batch, and for as many ranks as there will be, if that is
    /// known.
    pub fn is_for(
        &self,
        (model, sequence): (&str, usize),
        batch: usize,
        ranks: Option<u32>,
    ) -> bool {
        let file = &self.file;
        let same = (&file.model[..], file.sequence, file.batch) == (model, sequence, batch);
        same && ranks.is_none_or(|ranks| ranks as usize == self.plan.ranks())
    }

    /// The model as checkpoints keep it.
    ///
    /// # Errors
    /// If it has no sequences of the plan's length.
    pub fn kept(&self) -> Result<KeptModel> {
        let (name, sequence) = (self.file.model.clone(), self.file.sequence);
        let (identity, tokens) = (self.identity(sequence)?, self.tokens.clone());
        Ok(KeptModel { name, sequence, identity, tokens })
    }

    /// The model to write a text of so many bytes.
    ///
    /// # Errors
    /// If it is impossible.
    pub fn writer(&self, bytes: usize) -> Result<GraphModel> {
        model::writer(&self.source, (self.file.sequence, self.tokens.as_deref()), bytes)
    }

    /// Returns the model's identity, which depends neither on its name nor on its cuts: the
    /// fingerprint of its graph for one sequence of so many tokens.
    ///
    /// # Errors
    /// If the model has no such sequences.
    pub fn identity(&self, sequence: usize) -> Result<String> {
        Ok(format!("{:016x}", fingerprint(&self.source.graph(1, sequence)?)))
    }
}
