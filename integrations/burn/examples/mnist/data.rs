//! MNIST's IDX files, plain or compressed with gzip.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use burn::tensor::{Device, Int, Tensor, TensorData};
use flate2::read::GzDecoder;

use crate::Failure;

const SIDE: usize = 28;
const PIXELS: usize = SIDE * SIDE;

/// Labelled images.
pub struct Mnist {
    images: Vec<u8>,
    labels: Vec<u8>,
}

impl Mnist {
    /// Reads the images to train on and the images held out. Where `folder` has the 10,000 test
    /// images alone, the last 1,000 of them are held out.
    pub fn load(folder: &Path) -> Result<(Mnist, Mnist), Failure> {
        let mut test = Mnist::read(folder, "t10k")?;
        if open(folder, "train-labels-idx1-ubyte").is_ok() {
            return Ok((Mnist::read(folder, "train")?, test));
        }
        let labels = test.labels.split_off(test.len() * 9 / 10);
        let images = test.images.split_off(test.len() * PIXELS);
        Ok((test, Mnist { images, labels }))
    }

    fn read(folder: &Path, set: &str) -> Result<Mnist, Failure> {
        let images = values(folder, &format!("{set}-images-idx3-ubyte"), 16)?;
        let labels = values(folder, &format!("{set}-labels-idx1-ubyte"), 8)?;
        if images.len() != labels.len() * PIXELS {
            let (found, expected) = (images.len(), labels.len() * PIXELS);
            return Err(format!("{set} has {found} pixels, expected {expected}").into());
        }
        Ok(Mnist { images, labels })
    }

    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns normalised images of shape `[batch, 28, 28]` and their labels of shape `[batch]`.
    pub fn batch(&self, indices: &[usize], device: &Device) -> (Tensor<3>, Tensor<1, Int>) {
        let pixels = indices.iter().flat_map(|&i| &self.images[i * PIXELS..][..PIXELS]);
        let pixels: Vec<f32> = pixels.map(|&p| (f32::from(p) / 255.0 - 0.1307) / 0.3081).collect();
        let labels: Vec<i32> = indices.iter().map(|&i| i32::from(self.labels[i])).collect();
        let images = TensorData::new(pixels, [indices.len(), SIDE, SIDE]);
        let labels = TensorData::new(labels, [indices.len()]);
        (Tensor::from_data(images, device), Tensor::from_data(labels, device))
    }
}

/// Returns what follows the header of an IDX file.
fn values(folder: &Path, name: &str, header_bytes: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    open(folder, name)?.read_to_end(&mut bytes).map_err(|e| format!("reading {name}: {e}"))?;
    if bytes.len() < header_bytes {
        return Err(format!("{name} has {} bytes, expected {header_bytes}", bytes.len()).into());
    }
    Ok(bytes.split_off(header_bytes))
}

fn open(folder: &Path, name: &str) -> Result<Box<dyn Read>, Failure> {
    if let Ok(file) = File::open(folder.join(name)) {
        return Ok(Box::new(file));
    }
    let path = folder.join(format!("{name}.gz"));
    let file = File::open(&path).map_err(|e| format!("opening {}: {e}", path.display()))?;
    Ok(Box::new(GzDecoder::new(file)))
}
