"""Transforms of one image."""


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for each in self.transforms:
            image = each(image)
        return image


class ToTensor:
    def __call__(self, image):
        return image.float().div(255).unsqueeze(0)


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean[0], std[0]

    def __call__(self, image):
        return (image - self.mean) / self.std


class Lambda:
    def __init__(self, function):
        self.function = function

    def __call__(self, given):
        return self.function(given)
