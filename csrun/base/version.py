"""The version of csrun; a part of every compile's checksum."""

VERSION = "0.1.0"
