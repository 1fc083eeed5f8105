"""All operators that are supported, by importing the files that say so."""

from thinwire.mindspore.export import elements, images, norms, products, shapes

__all__ = ["elements", "images", "norms", "products", "shapes"]
