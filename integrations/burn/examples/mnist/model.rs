//! The network of the Burn Book's MNIST guide.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

/// Two convolutions, an average pooling and two linear layers: 531,178 parameters.
#[derive(Module, Debug)]
pub struct Model {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: AdaptiveAvgPool2d,
    linear1: Linear,
    linear2: Linear,
    dropout: Dropout,
}

impl Model {
    /// Draws the parameters from the random numbers of `device`.
    pub fn new(dropout: f64, device: &Device) -> Model {
        Model {
            conv1: Conv2dConfig::new([1, 8], [3, 3]).init(device),
            conv2: Conv2dConfig::new([8, 16], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([8, 8]).init(),
            linear1: LinearConfig::new(16 * 8 * 8, 512).init(device),
            linear2: LinearConfig::new(512, 10).init(device),
            dropout: DropoutConfig::new(dropout).init(),
        }
    }

    /// Returns logits of shape `[batch, 10]` for images of shape `[batch, 28, 28]`.
    pub fn forward(&self, images: Tensor<3>) -> Tensor<2> {
        let x = self.dropout.forward(self.conv1.forward(images.unsqueeze_dim(1)));
        let x = relu(self.dropout.forward(self.conv2.forward(x)));
        let x = self.pool.forward(x).flatten(1, 3);
        let x = relu(self.dropout.forward(self.linear1.forward(x)));
        self.linear2.forward(x)
    }
}
