//! Residuals: what codecs have lost of gradients and still owe, exchange by exchange.
//!
//! A step sends what is owed along and comes back with what is owed then. Law: results plus what is
//! owed after are gradients plus what was owed before, and a step that is left out changes nothing:
//! what was owed before it is kept until it is settled.

use std::collections::{BTreeMap, HashMap};

use super::async_exchanges::{Ticket, finish};
use crate::error::Error;

/// Residuals by the number of an exchange.
#[derive(Debug, Default)]
pub struct Residuals {
    /// All that is owed between two steps.
    pub here: BTreeMap<u32, Vec<f32>>,
    coming: HashMap<u32, Ticket>,
    /// Residuals before the step, where the step has changed them.
    before: BTreeMap<u32, Vec<f32>>,
}

impl Residuals {
    /// Returns the residual of an exchange of so many elements, for the next one to send along.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn take(&mut self, number: u32, elements: usize) -> Result<Vec<f32>, Error> {
        self.arrive(number)?;
        let owed = self.here.remove(&number).unwrap_or_else(|| vec![0.0; elements]);
        self.before.entry(number).or_insert_with(|| owed.clone());
        Ok(owed)
    }

    /// Takes note of a residual on its way.
    pub fn put(&mut self, number: u32, ticket: Ticket) {
        self.coming.insert(number, ticket);
    }

    /// Ends a step, which counts or does not.
    ///
    /// # Errors
    /// If a peer is lost.
    pub fn settle(&mut self, keep: bool) -> Result<(), Error> {
        let numbers: Vec<u32> = self.coming.keys().copied().collect();
        numbers.into_iter().try_for_each(|number| self.arrive(number))?;
        let before = std::mem::take(&mut self.before);
        if !keep {
            self.here.extend(before);
        }
        Ok(())
    }

    fn arrive(&mut self, number: u32) -> Result<(), Error> {
        if let Some(ticket) = self.coming.remove(&number) {
            self.here.insert(number, finish(&ticket)?);
        }
        Ok(())
    }
}
