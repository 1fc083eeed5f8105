"""All supported operators; importing the files registers them."""

from thinwire.torch.export import elements, images, norms, products, shapes

__all__ = ["elements", "images", "norms", "products", "shapes"]
