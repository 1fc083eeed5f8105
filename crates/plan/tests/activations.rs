//! What waits for backward, beside what is published of it.

mod published;

use published::{Keeping, MODELS, WAYS};

#[test]
fn published_models_keep_what_is_published() {
    for model in MODELS {
        for (way, keep, sequences) in WAYS {
            let theirs = model.formula(keep, sequences);
            let ours = model.ours(keep, sequences, Keeping::MEGATRON);
            let layer = ours.layer / theirs.layer;
            assert!((layer - 1.0).abs() < 1e-9, "{} {way}: a layer {layer}", model.name);
            let stage = ours.stage / theirs.stage;
            // Where a stage has chunks ours counts the embedding's masks of all that wait.
            let most = if model.chunks > 1 { 1.04 } else { 1.001 };
            assert!((0.999..most).contains(&stage), "{} {way}: a stage {stage}", model.name);
        }
    }
}

#[test]
fn what_another_program_keeps_beside_is_masks_logits_and_gathered_sequences() {
    let megatron = Keeping::MEGATRON;
    for model in MODELS {
        for (way, keep, sequences) in WAYS {
            let kept = |keeping| model.ours(keep, sequences, keeping);
            let ours = kept(Keeping::OURS);
            let as_read = kept(Keeping { as_written: false, ..megatron });
            let unmasked = kept(Keeping { mask: 0.0, logits: 0.0, ..megatron });
            assert!(ours.stage < as_read.stage, "{} {way}", model.name);
            assert!(unmasked.stage < kept(megatron).stage, "{} {way}", model.name);
            let same = unmasked.layer == ours.layer;
            assert!(same || sequences, "{} {way}: nothing is gathered", model.name);
        }
    }
}
