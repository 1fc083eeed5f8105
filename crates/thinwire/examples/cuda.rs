//! Gradients in the memory of a GPU, averaged between ranks without a copy to the host.
//!
//!     cargo run -p thinwire --features cuda --example cuda
//!
//! A framework gives the address of each gradient, and the stream that computes it. Here this program is
//! the framework and writes the gradients itself; two ranks are threads that share device 0. If there is
//! no device, the example prints why, and ends.

use std::error::Error;
use std::sync::Arc;

use thinwire::device::Device;
use thinwire::device::cuda::{Cuda, Stream};
use thinwire::link::{Link, mem};
use thinwire::{Gradient, Options, Outcome, Parameter, Synchronizer};

type Failure = Box<dyn Error + Send + Sync>;

const ELEMENTS: usize = 1 << 20;
const STEPS: u64 = 3;

fn main() -> Result<(), Failure> {
    // PyTorch's wheels have NVRTC, which compiles the kernels: name their folders if the system has none.
    let cuda = match Cuda::open(0, &[]) {
        Ok(cuda) => cuda,
        Err(reason) => {
            println!("no device that could encode: {reason}");
            return Ok(());
        }
    };
    std::thread::scope(|scope| {
        let rank = |link| scope.spawn(|| train(link, &cuda));
        let ranks: Vec<_> = mem::mesh(2).into_iter().map(rank).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("no rank panics"))
    })
}

fn train(link: Link, cuda: &Cuda) -> Result<(), Failure> {
    let device: Arc<dyn Device> = Arc::new(cuda.clone());
    let options = Options { policy: "int4".parse()?, device: Some(device), ..Options::default() };
    let mut sync = Synchronizer::start(link, vec![Parameter::new("weight", &[ELEMENTS])], options)?;
    let rank = sync.world().rank().0;
    // What a framework has: memory of its own, and the default stream.
    let memory = cuda.allocate(ELEMENTS);
    let (address, stream): (u64, Stream) = (cuda.address(&memory), std::ptr::null_mut());
    for step in 0..STEPS {
        cuda.write(&vec![rank as f32 + step as f32; ELEMENTS], &memory);
        // SAFETY: the memory has so many f32, and is kept by the region.
        let gradient = unsafe { cuda.foreign(address, ELEMENTS, memory.clone()) };
        sync.begin(step)?;
        // SAFETY: null is the default stream of the device's context.
        unsafe { cuda.after(stream) }?;
        sync.ready(0, Gradient::Device(&gradient))?;
        if sync.finish()? == Outcome::Averaged {
            let average = sync.gradient_on_device(0).expect("the gradient was on a device");
            // SAFETY: as above. What the stream is given from now on sees the average.
            unsafe { cuda.before(stream) }?;
            let mut first = [0.0];
            cuda.read(&average.slice(0..1), &mut first);
            println!("rank {rank}, step {step}: average {}", first[0]);
        }
    }
    Ok(())
}
